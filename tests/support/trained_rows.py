"""What a run's folder says of the rows that a training step was made of."""

import json


def trained_rows(folder, step):
    """By episode, the rows that the estimator gave an advantage in the step."""
    lines = (folder / "trajectories" / f"step_{step:06d}" / "groups.jsonl").read_text().splitlines()
    groups = [json.loads(line) for line in lines]
    return {f"{group['uid']}_{row['session']}": row for group in groups for row in group["rows"]}
