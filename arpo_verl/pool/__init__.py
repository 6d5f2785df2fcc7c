"""The desktops of a job on Ray, leased one episode at a time.

The agent loop enters `pool/desktop_pool.py: DesktopPool.lease`. One actor a job,
`pool/coordinator.py: DesktopCoordinator`, grants leases in turn (`pool/lease_desk.py: LeaseDesk`), keeps worker
processes where nodes have room (`fleet`, `placement`), and has each slot booted, offered and cleaned in the background
(`pool/slot_keeper.py: SlotKeeper.keep`). Calls on a desktop pass it by: they go from the holder straight to
`pool/worker.py: DesktopWorker`, where a thread of its own (`slot`) calls the desktop. Faults are counted (`metrics`)
and put down to hosts, which then rest (`hosts`), or to tasks (`quarantine`). Loops that raise are started again
(`supervision`).
"""
