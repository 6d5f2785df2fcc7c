"""The embedded desktop: an X server with real programs on this machine, for OSWorld's unmodified client.

packages        the Debian packages it needs
provider        OSWorld's provider interface; what the rest of arpo_verl uses
guest_process   a running sandbox as the host sees it
sandbox         the sandbox's command line: who sees what
relay           loopback ports of the host that lead into a desktop
guest/          what runs inside: process 1, the session, OSWorld's HTTP protocol
"""
