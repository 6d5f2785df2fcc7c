"""Episodes on disk."""

import json

import pytest
from loop_harness import DONE, HIT, ROW, FakePool, ScriptedEngine, play, recipe


def test_an_episode_is_one_folder_with_its_screenshots(policy, tokenizer, tmp_path):
    config = recipe({"trajectory_dir": str(tmp_path)})
    output = play(policy, ScriptedEngine(tokenizer, [HIT, "Action: dance()"]), FakePool(), config)
    folder = tmp_path / "step_000012" / "click-it__u-1_2"
    assert [path.name for path in sorted(tmp_path.rglob("*")) if path.is_file()] == [
        *("00.png", "01.png", "episode.json", "tokens.json")
    ]
    episode = json.loads((folder / "episode.json").read_text())
    assert [(folder / name).read_bytes() for name in episode["screenshots"]] == output.extra_fields["screenshots"]
    expected = {
        "task_id": "click-it",
        "instruction": "Click the red square.",
        "step": 12,
        "uid": "u-1",
        "session": 2,
        "stop_reason": "parse_error",
        "success": 1.0,
        "format_error": True,
        "reward": 0.0,
        "num_steps": 2,
        "response_tokens": len(output.response_ids),
    }
    assert {name: episode[name] for name in expected} == expected
    tokens = json.loads((folder / "tokens.json").read_text())
    assert [id_ for reply in tokens for id_ in reply["token_ids"]] == [
        id_ for id_, written in zip(output.response_ids, output.response_mask, strict=True) if written
    ]
    assert [len(reply["token_ids"]) for reply in tokens] == [len(reply["log_probs"]) for reply in tokens]
    first, second = episode["turns"]
    assert first["thought"] == "I click it." and first["parse_error"] is None
    assert first["actions"] == [{"action": "Click", "point": [35, 38], "button": "left", "count": 1}]
    assert second["actions"] == [] and "unknown action 'dance'" in second["parse_error"]
    assert second["text"] == "Action: dance()"
    assert episode["generate_s"] > 0 and episode["desktop_s"] > 0


def test_a_resumed_run_replaces_the_folder_whole(policy, tokenizer, tmp_path):
    config = recipe({"trajectory_dir": str(tmp_path)})
    for replies in ([HIT, DONE], [DONE]):
        play(policy, ScriptedEngine(tokenizer, replies), FakePool(), config)
    assert [path.name for path in sorted(tmp_path.rglob("*")) if path.is_file()] == [
        "00.png",
        "episode.json",
        "tokens.json",
    ]


def test_names_cannot_leave_the_directory(policy, tokenizer, tmp_path):
    config = recipe({"trajectory_dir": str(tmp_path / "inside")})
    row = {**ROW, "extra_info": {**ROW["extra_info"], "task_id": "../../x/y"}}
    play(policy, ScriptedEngine(tokenizer, [DONE]), FakePool(), config, row)
    assert [path.name for path in (tmp_path / "inside" / "step_000012").iterdir()] == [".._.._x_y__u-1_2"]
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]


def test_a_disk_that_refuses_costs_the_record_and_not_the_episode(policy, tokenizer, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    config = recipe({"trajectory_dir": str(tmp_path / "file")})
    assert play(policy, ScriptedEngine(tokenizer, [HIT, DONE]), FakePool(), config).reward_score == 1.0
    assert "could not be written" in caplog.text


@pytest.mark.parametrize(
    ("partitions", "validation"), [({"val": {"u-1": {}}}, True), ({"val": {}}, False), ({}, False)]
)
def test_validation_is_told_by_the_partition_of_the_queue(
    policy, tokenizer, tmp_path, monkeypatch, partitions, validation
):
    import transfer_queue as tq

    async def kv_list(partition_id):
        return partitions

    monkeypatch.setattr(tq, "get_client", lambda: None)
    monkeypatch.setattr(tq, "async_kv_list", kv_list)
    play(policy, ScriptedEngine(tokenizer, [DONE]), FakePool(), recipe({"trajectory_dir": str(tmp_path)}))
    (file,) = tmp_path.rglob("episode.json")
    assert json.loads(file.read_text())["validation"] is validation
