"""This package leases a job's desktops, on Ray, one episode at a time.

The agent loop enters `pool/desktop_pool.py: DesktopPool.lease`. A rollout's side:

    desktop_pool    `DesktopPool`: a process's handle; `Session`: an episode's leases; `Lease`, `Desktop`: one lease
    attempts        an episode's attempts, until one is not lost to a desktop

The pool's side, one actor a job, `pool_actor: PoolActor`:

    lease_queue     `LeaseQueue`: the holders of desktops, and those who wait for one
    desktop_keeper  `DesktopKeeper`: boots desktops, offers them, cleans them
    workers         `Workers`: the worker processes, on nodes that `placement` chooses
    worker          `DesktopWorker`: such a process; calls on a desktop go to it directly
    host_health     `HostHealth`: gives a pause to hosts that fail every task
    quarantine      `Quarantine`: gives a pause to tasks that break desktops on all hosts
    metrics         counters; `status_file` shows them while the run goes on
"""
