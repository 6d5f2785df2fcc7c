"""Beside a training run: the experimental door for stock EasyR1, its own trainer with our episodes and replay.

`python -m arpo_verl.easyr1 config=... [OPTION=VALUE ...]` runs it (`easyr1/command.py: main`). `settings` takes our
sections out of the configuration and checks them. `easyr1/trainer.py: ArpoTrainer` is EasyR1's trainer with four of
its methods ours, `estimator` our advantages under the name `grpo`. For a step `episodes` plays the tasks, whose replies
`engine` has EasyR1's rollout engine write; `replayer` puts past successes in; `rows` makes EasyR1's batch, of `images`
in the model's size. All names of EasyR1's are in `stock`; its package is called `verl` too. See docs/easyr1.md.
"""
