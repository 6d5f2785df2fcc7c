"""The embedded desktop is an X server with real programs on this machine, for OSWorld's unmodified client.

`environments/osworld/environment.py: OSWorldEnvironment` makes a `desktop/provider.py: EmbeddedProvider`. Its `start`
boots a sandbox through `desktop/guest_process.py: GuestProcess`: a fork of the template, whose command line is
`desktop/sandbox.py: command`. In the sandbox `guest/` runs: process 1, the session, OSWorld's HTTP protocol. Every
machine that OSWorld's client drives has the interface `desktop/machine_provider.py: MachineProvider`. `relay` leads
ports of the host's loopback into the sandbox. `packages` names the Debian packages, `programs` says which are there.
"""
