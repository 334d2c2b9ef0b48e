"""Jobs on a Ray cluster: `tidemill worker app.py --ray auto`. Needs the extra `tidemill[ray]`.

cluster      what a worker uses: starts each job as a Ray task, follows its reports, cancels it
mailbox      carries the reports of jobs that run for longer to their worker
remote_job   what runs in the cluster: loads the application once per process and runs one job at a time
"""
