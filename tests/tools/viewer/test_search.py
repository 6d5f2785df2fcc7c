"""Search in what the agent wrote and typed, and in verdicts."""

import shutil

import pytest

from arpo_verl.tools.viewer import search
from arpo_verl.tools.viewer.search import SearchIndex


def turn(**content):
    return {"screenshot": 0, "text": "", "thought": "", "actions": [], "parse_error": None, **content}


@pytest.fixture
def found(run):
    """Search the run; returns the ids."""
    index = SearchIndex(run)

    def ids(query):
        document = index.document(query)
        assert document["indexed"] == document["total"]
        return document["ids"]

    return ids


def test_every_kind_of_text_is_searched(written, found):
    typed = {"action": "TypeText", "text": "quarterly"}
    call = {"metric": "exact_match", "result": "'milk'", "expected": "oatmeal", "returned": "0.0"}
    turns = [turn(text="Action: press", thought="The dialog hides"), turn(actions=[typed])]
    id = written.episode(1, "order-tea", instruction="Order a cup.", turns=turns, evaluator=[call])
    written.episode(1, "other", uid="u2")
    for query in "order-tea,cup order,dialog hides,Action: press,quarterly,oatmeal,milk exact_match".split(","):
        assert found(query) == [id], query


def test_words_match_from_their_beginning_whatever_their_case_and_all_must(written, found):
    id = written.episode(1, instruction="Rename the Spreadsheet")
    assert found("spread") == found("REN spreadsheet") == [id]
    assert found("sheet") == found("rename document") == []
    id = written.episode(1, "задача", instruction="Нажми кнопку \ud800")  # any script, and half a letter
    assert found("кноп") == [id]


@pytest.mark.parametrize(
    "query", ['" OR "x', "NEAR(press, 1)", "instruction:press OR", "*", "-", "'; DROP TABLE words", ""]
)
def test_a_query_is_words_and_no_language(written, found, query):
    written.episode(1, instruction="Press it")
    assert found(query) == []


def test_what_is_new_written_anew_or_gone_is_known_at_the_next_search(written, run, found):
    first = written.episode(1, instruction="alpha")
    assert found("alpha") == [first]
    second = written.episode(2, instruction="alpha beta")
    assert found("alpha") == [first, second]
    written.episode(2, instruction="gamma and more")
    assert (found("alpha"), found("gamma")) == ([first], [second])
    shutil.rmtree(written.trajectories / first)
    assert found("alpha") == []


def test_a_search_shows_how_far_the_index_is_and_the_next_one_goes_on(written, run, monkeypatch):
    monkeypatch.setattr(search, "INDEX_S", 0.0)
    for session in range(3):
        written.episode(1, session=session, instruction="alpha")
    index = SearchIndex(run)
    for indexed in (1, 2, 3, 3):
        document = index.document("alpha")
        assert (document["indexed"], document["total"], len(document["ids"])) == (indexed, 3, indexed)


def test_the_index_is_beside_no_run_and_goes(written, run, found):
    written.episode(1, instruction="alpha")
    before = sorted(path.name for path in written.path.rglob("*"))
    assert found("alpha")
    assert sorted(path.name for path in written.path.rglob("*")) == before
    index = SearchIndex(run)
    index.document("alpha")
    folder = index._scratch.path
    assert folder.is_dir()
    del index
    assert not folder.exists()


def test_a_hit_is_the_turn_with_most_of_the_words(written, run):
    typed = {"action": "TypeText", "text": "Quarterly numbers"}
    call = {"metric": "exact_match", "result": "'milk'", "expected": "oatmeal", "returned": "0.0"}
    turns = [turn(text="The numbers"), {}, turn(actions=[typed, {"action": "Wait"}]), turn(thought="later")]
    id = written.episode(1, "tea", turns=turns, evaluator=[call, {}])
    hits = SearchIndex(run).hits_document
    assert hits("quarter num", [id])["hits"] == {id: {"turn": 3, "text": "Quarterly numbers"}}
    assert hits("later", [id])["hits"][id]["turn"] == 4
    assert hits("milk", [id])["hits"] == {id: {"turn": None, "text": "exact_match 'milk' oatmeal 0.0"}}
    for query in ("tea", "umbers", "", "(", "x" * 10_000):
        assert hits(query, [id, "../x", "step_000001/none"]) == {"hits": {}}, query
    written.episode(2, "long", uid="u2", turns=[turn(text=f"{'a ' * 500}needle{' b' * 500}")])
    (hit,) = hits("needle", ["step_000002/long__u2_0"])["hits"].values()
    assert "needle" in hit["text"] and len(hit["text"]) < 200
