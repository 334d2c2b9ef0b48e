"""The line about each command on the page of `tidemill --help`, which is shown without loading the commands.

Each is the first paragraph of the help of the command itself.
"""

# ruff: noqa: E501 - one line for each command

SUMMARIES = {
    "new": "Make the folder of a new application: work of every shape, tests, a compose file.",
    "dev": "Start everything, and start it again when code changes: jobs and runs go on with the new code.",
    "up": "Start everything: database, maintenance, workers, server. Ctrl-C stops it.",
    "worker": "Run the jobs and the durable runs of an application, each in a process that is started again when it dies.",
    "maintenance": "Migrate the schema, keep the tables in order (leases, dead workers, retention), and fire schedules.",
    "server": "Serve the console and the HTTP API of an application, or of all; by default to this machine only.",
    "enqueue": "Enqueue a job and print its id.",
    "jobs": "List jobs, the newest first.",
    "job": "Show one job: why it exists, what it waits for, how it went.",
    "retry": "Run jobs again: waiting ones now, finished ones as new jobs. By options, failed jobs unless --state says more.",
    "batch": "List batches of jobs; show, enqueue, close or cancel one.",
    "cancel": "Cancel jobs: waiting ones at once, running ones as soon as their task can be stopped. Runs as well.",
    "start": "Start a task, flow or dag of the application by its name, and print the id of the job or run.",
    "runs": "List durable runs; move those of older versions to the present one.",
    "run": "Show one run: its state and why, and its journal; of a dag, the tree of its nodes.",
    "send": "Send an event to a run: it is stored when this returns, and wakes the run if it sleeps.",
    "fork": "Start a new run where another was after one of its ticks.",
    "inputs": "List what runs of dags and flows wait for a person to answer, the longest waiting first.",
    "submit": "Answer what a run asks. The answer must fit the schema; the first that does counts.",
    "dag": "Check, draw, start and repeat dags; answer what their runs ask.",
    "monitor": "Follow entities, and act on alerts.",
    "pipeline": "Pipelines: what must exist, what is missing or out of date, and why.",
    "workflow": "Workflow files: check them as the editor does; list, disable and enable workflows.",
    "stream": "Run streams, show and change them, replay dead letters.",
    "explain": "Explain anything: a job (7), a run (r7), a node (r7/NODE), a schedule, a state of a pipeline, an alert (a7).",
    "top": "Watch hosts, workers, queues and runs live; q or Ctrl-C quits.",
    "workers": "List workers; pause, drain, stop or resume them.",
    "queues": "Count what is in each queue; limit how fast its jobs start.",
    "history": "Show how much tasks, queues, hosts or workers did, how long it took and how much of it failed.",
    "schedules": "List and explain schedules; make, change, delete, pause, resume, run or backfill them.",
    "value": "Write a large value whole to the standard output, as it is stored.",
    "audit": "List what operators did, the newest first.",
    "forget": "Delete everything that is stored under a key, or the jobs with a tag, and say how much that was.",
    "token": "Make, list and revoke API tokens.",
    "credentials": "Credentials: secrets for workflow files, sealed in the database.",
    "session": "List the browsers that are logged in, and log one out.",
    "db": "The database: its schema's version, migrations, backups, a shell.",
    "deploy": "Check the next version of the application before it is deployed.",
    "config": "Show every setting and where its value came from.",
}
