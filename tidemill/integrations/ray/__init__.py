"""Jobs on a Ray cluster: `tidemill worker app.py --ray auto`. Needs the extra `tidemill[ray]`.

cluster      what a worker uses: runs each job in a slot of the cluster, cancels it, says in our words how it was lost
slots        the slots of a worker: Ray tasks that hold resources and run one job after the other, and their connections
lost_nodes   the nodes that no slot is placed on for a while
remote_slot  what runs in the cluster: loads the application once per process and runs the jobs that it is sent
"""
