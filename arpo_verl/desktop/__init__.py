"""The embedded desktop: an X server with real programs on this machine, for OSWorld's unmodified client.

`environments/osworld/environment.py: OSWorldEnvironment` makes a `desktop/provider.py: EmbeddedProvider`, whose `start`
boots, through `desktop/guest_process.py: GuestProcess`, a sandbox: a fork of the template, whose command line is
`desktop/sandbox.py: command`. In there `guest/` runs: process 1, the session, OSWorld's HTTP protocol.
`desktop/machine_provider.py: MachineProvider` is what it has in common with every machine that OSWorld's client drives.
`relay` leads ports of the host's loopback into it. `packages` names the Debian packages, `programs` says which are
there.
"""
