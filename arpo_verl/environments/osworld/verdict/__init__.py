"""Verdicts in a sandbox: each is given by a process of its own, which is killed with all that it started.

OSWorld's getters and metrics read what the policy made, some by evaluating, importing or unpacking it. So they run
where that can do no harm. `environments/osworld/verdict/sandboxed_evaluator.py: SandboxedEvaluator` asks this process's
sandbox host (`environments/osworld/verdict/sandbox_host.py: SandboxHost`, itself in bubblewrap, with OSWorld's client
imported and warm: `host_command`, `zygote`) for a fork, the sandbox (`environments/osworld/verdict/sandbox.py: main`):
namespaces of its own, no privilege, bounded (`sandbox_limits`), with the ways from data to code closed (`closed_ways`)
and the metrics mended that were content with too little (`mended_metrics`). It reaches its desktop through
ports that this side listens on (`guest_relay`), and answers with bounded JSON (`messages`).
"""
