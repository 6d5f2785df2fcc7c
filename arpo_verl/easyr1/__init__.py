"""Beside a training run: this package is the experimental door for stock EasyR1, with our episodes and replay.

`python -m arpo_verl.easyr1 config=... [OPTION=VALUE ...]` runs it (`easyr1/command.py: main`). `settings` takes our
sections out of the configuration and checks them. `easyr1/trainer.py: ArpoTrainer` replaces four methods of EasyR1's
trainer; `estimator` registers our advantages as `grpo`. In a step `episodes` plays the tasks, for which `engine` gets
replies from EasyR1's rollout engine. `replayer` injects past successes, and `rows` makes EasyR1's batch, with `images`
in the model's size. Only `stock` imports EasyR1, whose package is called `verl` too. See docs/easyr1.md.
"""
