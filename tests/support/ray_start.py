"""Starts Ray, which gives itself 30 s and has no option to wait longer: a busy machine may need another go."""

import ray

ATTEMPTS = 5


def start_ray(num_cpus=2, **options):
    """Start a local Ray."""
    quiet = {"include_dashboard": False, "log_to_driver": False}
    return in_a_few_attempts(lambda: ray.init(address="local", num_cpus=num_cpus, **quiet, **options), ray.shutdown)


def in_a_few_attempts(start, clean_up=lambda: None):
    """What `start` returns, cleaning up after each attempt that failed."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return start()
        except Exception:
            clean_up()
            if attempt == ATTEMPTS:
                raise
