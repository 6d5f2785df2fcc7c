"""Forms, as a client may send them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from requests_toolbelt.multipart.encoder import MultipartEncoder

from arpo_verl.desktops.embedded.guest.messages import Request


@given(content=st.binary(max_size=300), path=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
def test_multipart_form_gives_back_every_byte(content, path):
    encoder = MultipartEncoder({"file_path": path, "file_data": ("name.bin", content)})
    request = Request(encoder.content_type, encoder.to_string())
    assert request.form() == {"file_path": path.encode(), "file_data": content}


def test_url_encoded_form():
    assert Request("application/x-www-form-urlencoded", b"file_path=%2Fa%20b%C3%BC").form() == {
        "file_path": "/a bü".encode()
    }


@pytest.mark.parametrize("body", [b"[1]", b"nonsense", b'"text"'])
def test_body_that_is_no_json_object_is_refused(body):
    with pytest.raises(ValueError):
        Request("application/json", body).json()
