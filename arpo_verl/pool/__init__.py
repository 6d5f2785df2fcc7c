"""The desktops of a job on Ray, leased one episode at a time.

The agent loop enters `pool/desktop_pool.py: DesktopPool.lease`. A rollout's side:

    desktop_pool    `DesktopPool`: a process's handle; `Session`: an episode's leases; `Lease`, `Desktop`: one of them
    attempts        an episode's attempts, until no desktop fails it

The pool's side, one actor a job, `pool_actor: PoolActor`:

    lease_queue     `LeaseQueue`: who has which desktop, and who waits for one
    desktop_keeper  `DesktopKeeper`: boots desktops, offers them, cleans them
    workers         `Workers`: the worker processes, on nodes that `placement` chooses
    worker          `DesktopWorker`: such a process; calls on a desktop go to it directly
    host_health     `HostHealth`: hosts that fail every task rest
    quarantine      `Quarantine`: so do tasks that break desktops wherever they come
    metrics         counters; `status_file` shows them while the run goes on
"""
