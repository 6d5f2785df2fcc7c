"""The embedded desktop is an X server with real programs on this machine, for OSWorld's unmodified client.

`desktops/osworld/environment.py: OSWorldEnvironment` makes a `desktops/embedded/provider.py: EmbeddedProvider`. Its
`start` boots a sandbox through `desktops/embedded/guest_process.py: GuestProcess`: a fork of the template, whose
command line is `desktops/embedded/sandbox.py: command`. In the sandbox `guest/` runs: process 1, the session, OSWorld's
HTTP protocol. Every machine that OSWorld's client drives has the interface `desktops/machine_provider.py:
MachineProvider`. `lib/relay.py` leads the host's ports into the sandbox. `packages` names the Debian packages,
`programs` says which are there.
"""
