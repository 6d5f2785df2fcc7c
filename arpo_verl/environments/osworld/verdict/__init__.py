"""Verdicts in a box: each evaluation is a process of its own, sandboxed, that is killed with all it started.

OSWorld's getters and metrics read what the policy made, some by evaluating, importing or unpacking it. So they run
where that can do no harm. `environments/osworld/verdict/judge.py: Judge` asks this process's judge host
(`environments/osworld/verdict/judge_host.py: JudgeHost`, a bubblewrap sandbox with OSWorld's client imported and warm:
`host_sandbox`, `zygote`) for a fork, the box (`environments/osworld/verdict/box.py: main`): namespaces of its own, no
privilege, bounded (`isolation`), with the ways from data to code closed (`closed_ways`). It reaches its desktop through
ports that this side listens on (`guest_relay`), and answers with bounded JSON (`messages`).
"""
