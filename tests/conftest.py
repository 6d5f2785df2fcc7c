"""What tests of several folders need."""

import pytest


@pytest.fixture(scope="session")
def start_ray():
    """Start a local Ray. It gives itself 30 s and has no option to wait longer, which a busy machine may need."""
    import ray

    def start(num_cpus=2, attempts=5):
        for attempt in range(1, attempts + 1):
            try:
                ray.init(address="local", num_cpus=num_cpus, include_dashboard=False, log_to_driver=False)
                return
            except Exception:
                ray.shutdown()
                if attempt == attempts:
                    raise

    return start
