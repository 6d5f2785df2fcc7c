"""Print the tree of accessible objects as XML, as OSWorld's guest does; a script for the system's own Python.

The bindings of AT-SPI belong to the system's Python (`python3-gi`, `gir1.2-atspi-2.0`); the desktop's is another.
Source: OSWorld, desktop_env/server/main.py, whose names of elements and attributes evaluators look for.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET

import gi

gi.require_version("Atspi", "2.0")
from gi.repository import Atspi, GLib  # noqa: E402

NAMESPACES = {
    "st": "uri:deskat:state.at-spi.gnome.org",
    "attr": "uri:deskat:attributes.at-spi.gnome.org",
    "cp": "uri:deskat:component.at-spi.gnome.org",
    "txt": "uri:deskat:text.at-spi.gnome.org",
    "val": "uri:deskat:value.at-spi.gnome.org",
    "act": "uri:deskat:action.at-spi.gnome.org",
}
MAX_DEPTH, MAX_WIDTH = 50, 1024  # OSWorld's own: a sheet has millions of cells
CALL_TIMEOUT_MS = 2000
STANDS_FOR = {"Chromium": "Google Chrome"}
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.\-]")
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffb\U00010000-\U0010ffff]")  # and no object replacement


def main() -> None:
    """Print the whole desktop."""
    Atspi.init()
    Atspi.set_timeout(CALL_TIMEOUT_MS, CALL_TIMEOUT_MS)
    for prefix, uri in NAMESPACES.items():
        ET.register_namespace(prefix, uri)
    root = ET.Element("desktop-frame")
    _add_children(root, Atspi.get_desktop(0), 0)
    sys.stdout.buffer.write(ET.tostring(root, encoding="utf-8"))


def _add_children(element: ET.Element, node: Atspi.Accessible, depth: int) -> None:
    for index in range(min(node.get_child_count(), MAX_WIDTH) if depth < MAX_DEPTH else 0):
        try:
            child = node.get_child_at_index(index)
            if child is not None:
                _add_children(_add(element, child), child, depth + 1)
        except GLib.Error:
            continue  # it went away meanwhile, or its program hangs


def _add(parent: ET.Element, node: Atspi.Accessible) -> ET.Element:
    role = _NOT_IN_A_NAME.sub("-", (node.get_role_name() or "").strip()) or "unknown"
    states = {state.value_nick.replace("-", "_") for state in node.get_state_set().get_states()}
    name = _clean(node.get_name())
    element = ET.SubElement(parent, role, {"name": STANDS_FOR.get(name, name) if role == "application" else name})
    _set(element, "st", dict.fromkeys(sorted(states), "true"))
    _set(element, "attr", node.get_attributes() or {})
    if {"showing", "visible"} <= states and (component := node.get_component_iface()) is not None:
        box = component.get_extents(Atspi.CoordType.SCREEN)
        _set(element, "cp", {"screencoord": str((box.x, box.y)), "size": str((box.width, box.height))})
    if (text := node.get_text_iface()) is not None:
        element.text = _clean(Atspi.Text.get_text(text, 0, -1))
    if (value := node.get_value_iface()) is not None:
        _set(element, "val", {"value": str(value.get_current_value())})
    if (action := node.get_action_iface()) is not None:
        for number in range(action.get_n_actions()):
            name = action.get_action_name(number)
            _set(element, "act", {f"{name}_desc": action.get_action_description(number)})
    return element


def _set(element: ET.Element, prefix: str, values: dict[str, str]) -> None:
    for name, value in values.items():
        element.set(f"{{{NAMESPACES[prefix]}}}{_NOT_IN_A_NAME.sub('-', name) or 'unknown'}", _clean(value))


def _clean(text: str | None) -> str:
    return _NOT_IN_XML.sub("", text or "")


if __name__ == "__main__":
    main()
