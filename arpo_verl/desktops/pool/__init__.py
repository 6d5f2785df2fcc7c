"""A job's desktops, leased on Ray one episode at a time: lease, desktop, host, retry, drop (docs/desktop-pool.md).

The agent loop enters `desktops/pool/desktop_pool.py: DesktopPool.lease`. A rollout's side:

    desktop_pool    `DesktopPool`: a process's handle; `Session`: an episode's leases; `Lease`, `Desktop`: one lease
    attempts        retries an episode until no desktop fails it, at most `max_attempts` times

The pool's side, one actor a job, `pool_actor: PoolActor`:

    lease_queue     `LeaseQueue`: the holders of desktops, and those who wait for one
    desktop_keeper  `DesktopKeeper`: boots desktops, offers them, cleans them
    hosts           `Hosts`: drops hosts that fail one desktop after the other, and asks them again
    workers         `Workers`: the worker processes, on nodes that `placement` chooses
    worker          `DesktopWorker`: such a process; calls on a desktop go to it directly
    metrics         counters; `status_file` shows them while the run goes on
"""
