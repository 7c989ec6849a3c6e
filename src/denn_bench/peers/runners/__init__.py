"""One file per peer, run by the Python of that peer's environment; nothing here imports denn.

`train(job)` of each file trains within the job's time, saves the model to `job.folder` and returns a `Trained`.
"""
