"""Each verdict is given in a sandbox: a process of its own, which we kill with all that it started.

OSWorld's getters and metrics read what the policy made; some evaluate, import or unpack it. So they run where that can
do no harm. `desktops/osworld/verdict/sandboxed_evaluator.py: SandboxedEvaluator` asks this process's sandbox host
(`desktops/osworld/verdict/sandbox_host.py: SandboxHost`, in bubblewrap, with OSWorld's client already imported:
`host_command`) for a fork, the sandbox (`desktops/osworld/verdict/sandbox.py: main`). That has its own
namespaces, no privileges, and limits. In it the ways from data to code are closed (`closed_ways`),
and metrics that accepted too little are corrected (`mended_metrics`). It reaches its desktop through ports that this
process listens on (`lib/relay.py`, `https_proxy`), and answers with bounded JSON (`messages`).
"""
