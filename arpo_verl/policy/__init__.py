"""A small Qwen2.5-VL made on this machine, which RL can start from: the embedded recipe's policy.

`python -m arpo_verl.policy` calls `policy/prepare.py: prepare_policy`: the scripted expert plays each task on real
desktops (`demonstrations`), a tokenizer and a random model are made (`build`, `architecture`, `tokenizer`), and
`policy/warm_start.py: imitate` trains it on the demonstrations until it solves as many tasks as asked for, no more: in
the rows that the agent loop would make of them (`policy/sequences.py: SequenceBuilder`), by the run's
`gui_agent.context`. The folder that comes of it is an ordinary Hugging Face model: `actor_rollout_ref.model.path`.
"""
