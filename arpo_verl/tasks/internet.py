"""Find out from a task's JSON where it needs the internet on its desktop. Pure.

Downloads do not count: OSWorld's client makes them on the host and passes the files on.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from arpo_verl.desktops.osworld.task_files import getters_of, steps_of
from arpo_verl.tasks.programs import commands_of
from arpo_verl.types import is_bundle

_URL = re.compile(r"https?://[^\s\"'<>),;]+")
# A site without `https://`, such as gnome-look.org; not the part of a mail address after its @.
_SITE = re.compile(r"(?<![@\w.\-/])(?:[a-z0-9\-]+\.)+(?:com|edu|gov|io|net|org)\b(?![\w@\-]|\.\w)", re.IGNORECASE)
_ACCOUNT_STEPS = {"googledrive", "login"}
_ACCOUNT_GETTERS = {"googledrive_file"}
# These fetch a web page themselves.
_FETCHING_GETTERS = {"info_from_website", "pdf_from_url", "page_info", "gotoRecreationPage_and_get_html_content"}
# These read the page that the agent went to.
_PAGE_GETTERS = {
    "active_tab_html_parse",
    "active_tab_info",
    "active_tab_url_parse",
    "active_url_from_accessTree",
    "macys_product_url_parse",
    "number_of_search_results",
    "open_tabs_info",
    "url_dashPart",
    "url_path_parse",
}
_FETCHING_PROGRAMS = {"wget", "curl", "git"}
_PACKAGE_MANAGERS = {"pip", "pip3", "conda", "npm", "cargo", "gem", "go", "snap", "flatpak"}
_APT = {"apt", "apt-get", "aptitude"}


def internet_reasons(spec: Mapping[str, Any]) -> list[str]:
    """Return why a task cannot be done on a desktop without the internet; empty without such a sign.

    It does not find what only a person understands from the instruction ("search for a tutorial").
    """
    return list(dict.fromkeys([*_of_steps(spec), *_of_evaluator(spec), *_of_words(spec)]))


def apt_packages(spec: Mapping[str, Any]) -> list[str]:
    """Return the packages that a task's set-up installs by apt."""
    lines = [words for words in commands_of(spec) if words[0] in _APT and "install" in words]
    packages = [word for words in lines for word in words[words.index("install") + 1 :]]
    return list(dict.fromkeys(word for word in packages if word[:1] not in ("", "-")))


def _of_steps(spec: Mapping[str, Any]) -> Iterator[str]:
    for step in steps_of(spec):
        parameters = step["parameters"]
        if step["type"] in _ACCOUNT_STEPS:
            yield f"its set-up logs in to an account on the web ({parameters.get('platform', step['type'])})"
        elif step["type"] == "chrome_open_tabs":
            for host in _hosts(parameters.get("urls_to_open", [])):
                yield f"its set-up opens the website {host}"
    for words in commands_of(spec):
        if words[0] in _PACKAGE_MANAGERS and "install" in words:
            yield f"its set-up or evaluator runs `{' '.join(words)}`"
        elif words[0] in _FETCHING_PROGRAMS:
            yield from (f"its set-up or evaluator fetches from {host}" for host in _hosts(words))


def _of_evaluator(spec: Mapping[str, Any]) -> Iterator[str]:
    # A page of the browser's own, such as chrome://settings, needs no network.
    of_browser = "chrome://" in json.dumps(spec.get("evaluator", {}).get("expected"))
    for getter in getters_of(spec):
        kind = getter["type"]
        if kind in _ACCOUNT_GETTERS:
            yield "its evaluator reads an account on the web (googledrive)"
        elif kind in _FETCHING_GETTERS:
            hosts = _hosts([str(value) for value in getter.values()])
            yield f"its evaluator fetches a page of {', '.join(hosts) or 'the web'}"
        elif kind in _PAGE_GETTERS and not of_browser:
            yield f"its evaluator reads the website in the browser's tab ({kind})"


def _of_words(spec: Mapping[str, Any]) -> Iterator[str]:
    if is_bundle(spec):
        return  # its instruction names a site that it brings itself
    if spec.get("proxy") is True:
        yield "it asks for a proxy to the web (`proxy: true`)"
    instruction = str(spec.get("instruction", ""))
    sites = [*_hosts([instruction]), *(site.lower() for site in _SITE.findall(_URL.sub(" ", instruction)))]
    # A site that the set-up writes to a file is the task's content; the task need not go there.
    brought = json.dumps(steps_of(spec))
    yield from (f"its instruction names the website {site}" for site in sites if site not in brought)


def _hosts(texts: list[str]) -> list[str]:
    """Return the public hosts of all URLs in `texts`, each once."""
    hosts = dict.fromkeys(_host(url) for text in texts for url in _URL.findall(text))
    return [host for host in hosts if is_public(host)]


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:  # such as an open bracket
        return ""


def is_public(host: str) -> bool:
    """Return whether a host is on the internet, by its name."""
    if not host or host == "localhost" or host.endswith((".local", ".localhost", ".internal")):
        return False
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return True
