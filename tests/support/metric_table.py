"""OSWorld's metrics, each with how it is tried or why it is not. `attacked_metrics` says what a try is.

`python -m support.metric_table PATH quick` (or `heavy`) writes the scores of a part.
"""

from __future__ import annotations

import datetime
import sys
from functools import partial

from support import made_files as make
from support.attacked_metrics import NONE, Gold, Try, main

ABSENT = "the task asks that something is not there, or not so"
ASKS_LITTLE = "the rule asks for one thing, which this has; a task pairs it with another check"
STILL_THERE = "what the rule asks for is in the part that is left"

TORN = {"torn before the end": STILL_THERE}
FIRST = {"first part": ASKS_LITTLE}
OF_FILES = "nothing in it, garbage, garbled text, empty, torn in the middle, torn before the end, head".split(", ")
OF_FILES += ["list", "list behind a comment", "list behind a head"]
"""Attacks upon each metric of a file."""

P1, P2, P3 = "The first paragraph of it.", "The second one, in the middle.", "And the third, the last."
PAGES = ("The first page of text.", "Another page.", "The last page, with more words.")
TRAINS = ("10:00,A,x,1", "10:01,B,x,1", "10:02,A,x,2")
WRITER = "/org.openoffice.Office.Writer/DefaultFont"


def rules(**values: object) -> dict[str, object]:
    return values


def sheet(*parts: object, maker: object = make.xlsx, **rule: object) -> Try:
    """compare_table by one rule."""
    both = {} if "sheet_idx" in rule else {"sheet_idx0": "RI0", "sheet_idx1": "EI0"}
    return Try(maker, parts, options={"rules": [{**both, **rule}]})


def changed(*fulfilled: str, **change: float) -> Try:
    """A picture that is changed as the task asks, beside the first one."""
    maker = make.one_of(partial(make.picture, **change))
    return Try(maker, (1,), Gold(make.picture(1)), fulfilled=dict.fromkeys(fulfilled, ASKS_LITTLE))


def vlc_option(section: str, option: str, value: str, expected: str = "") -> tuple[str, Try]:
    name = option.replace("-", "_")
    rule = rules(**{f"expected_{name}": expected or value})
    return f"vlc.check_{name}", Try(make.lines, (f"[{section}]", f"{option}={value}"), rule)


TRIES: dict[str, Try] = {
    "basic_os.check_gnome_favorite_apps": Try(
        lambda *p: repr(list(p)), ("a.desktop", "b.desktop"), rules(expected=["b.desktop", "a.desktop"])
    ),
    "basic_os.is_utc_0": Try(
        lambda *p: "\n".join(p), ("Local", "Universal", "RTC", "Time zone: UTC (UTC, +0000)"), NONE
    ),
    "basic_os.check_text_enlarged": Try(make.last_of, ("1.25",), NONE),
    "basic_os.check_moved_jpgs": Try(
        lambda *p: {"children": [{"name": n} for n in p]}, ("a.jpg", "b.jpg"), rules(expected=["a.jpg", "b.jpg"])
    ),
    "basic_os.is_in_vm_clickboard": Try(make.joined, ("/a/", "b"), rules(expected=["/a/", "b"]), swapped=True),
    "chrome.is_expected_active_tab": Try(
        lambda *p: make.pairs(*p), (("url", "https://example.org/a"),), rules(type="url", url="https://example.org/a")
    ),
    "chrome.is_expected_active_tab_approximate": Try(
        make.pairs, (("url", "https://example.org/a?b"),), rules(type="url", url="https://example.org/a")
    ),
    "chrome.is_expected_url_pattern_match": Try(
        make.joined, ("https://example.org/", "a?b"), rules(expected=["org/", "a\\?b$"])
    ),
    "chrome.is_expected_installed_extensions": Try(
        make.items, ("ext-one", "ext-two"), rules(expected=["ext-two", "ext-one"])
    ),
    "chrome.is_expected_tabs": Try(
        lambda *p: [{"url": u} for u in p],
        ("https://a.org/", "https://b.org/"),
        rules(type="url", urls=["https://a.org", "https://b.org"]),
    ),
    "chrome.is_expected_bookmarks": Try(
        lambda *p: {"bookmark_bar": {"children": [{"type": "folder", "name": n} for n in p]}},
        ("a", "b"),
        rules(type="bookmark_bar_folders_names", names=["a", "b"]),
    ),
    "chrome.is_expected_search_query": Try(
        make.pairs, (("url", "https://example.org/?q=a"),), rules(expect={"pattern": "q=a$"})
    ),
    "chrome.compare_pdfs": Try(make.pdf, PAGES, fulfilled=TORN),
    "chrome.compare_pdf_images": Try(make.pdf, (make.picture(1), make.picture(2), make.picture(3))),
    "chrome.compare_archive": Try(
        make.tarred, (("a.txt", b"first"), ("b.txt", b"second")), options={"file_type": "text"}
    ),
    "chrome.compare_htmls": Try(
        make.html, ("<p>words</p>", '<img src="a.png"/>', "<hr/>"), options={"ignore_sdnum": True}
    ),
    "chrome.is_cookie_deleted": Try(
        make.items,
        (("name", "kept.org"),),
        rules(type="domains", domains=["gone.org"]),
        fulfilled={"nothing in it": ABSENT, "empty": ABSENT},
    ),
    "chrome.is_shortcut_on_desktop": Try(
        make.pairs,
        (("a.desktop", "[Desktop Entry]\nName=A\n"), ("b.desktop", "Name=B\n")),
        rules(type="name", name="B"),
    ),
    "chrome.check_history_deleted": Try(
        make.items,
        (("https://kept.org", "Kept"),),
        rules(type="keywords", keywords=["youtube"]),
        fulfilled={"nothing in it": ABSENT, "empty": ABSENT, "garbled text": ABSENT, "another type": ABSENT},
    ),
    "chrome.check_enabled_experiments": Try(make.items, ("a@1", "b@2"), rules(type="names", names=["a", "b"])),
    "chrome.check_font_size": Try(make.pairs, (("default_font_size", 20),), rules(type="range", min=18, max=24)),
    "chrome.is_added_to_steam_cart": Try(make.pairs, (("content", "Dota 2 and more"),), rules(items=["Dota 2"])),
    "docs.find_default_font": Try(
        make.registry, ((WRITER, "Standard", "Times New Roman"),), rules(font_name="Times New Roman")
    ),
    "docs.contains_page_break": Try(make.docx, (P1, make.page_break, P2, make.page_break), rules(page_break_count=2)),
    "docs.compare_docx_files": Try(make.docx, (P1, P2, P3)),
    "docs.compare_docx_files fuzzy": Try(
        make.docx, (P1, P2, P3), options={"ignore_blanks": False, "fuzzy_match": True}
    ),
    "docs.compare_docx_files odt": Try(make.odt, (P1, P2, P3)),
    "docs.compare_init_lines": Try(make.docx, (P1, P2, P3)),
    "docs.compare_docx_tables": Try(make.docx, (make.table("a", "b"), make.table("c"))),
    "docs.compare_docx_images": Try(make.docx, (P1, make.drawing)),
    "docs.compare_line_spacing": Try(make.docx, (make.paragraph(P1, line_spacing=2.0), P2)),
    "docs.compare_insert_equation": Try(make.docx, (P1, make.equation)),
    "docs.compare_font_names": Try(
        make.docx, (make.run(P1, name="Arial"), make.run(P2, name="Arial")), rules(font_name="Arial"), fulfilled=FIRST
    ),
    "docs.compare_subscript_contains": Try(make.docx, (make.run("2", subscript=True), P2)),
    "docs.has_page_numbers_in_footers": Try(
        make.docx, (make.footer, P1), NONE, fulfilled=FIRST, more={"no section": (P1, make.no_section)}
    ),
    "docs.is_first_line_centered": Try(make.docx, (make.paragraph(P1, alignment=1), P2), NONE, fulfilled=FIRST),
    "docs.check_tabstops": Try(
        make.docx, (make.tab_stop, make.tab_stop), options={"word_number_split_by_tabstop": 1, "index": 0}
    ),
    "docs.compare_contains_image": Try(make.docx, (P1, make.drawing, P2)),
    "docs.evaluate_colored_words_in_tables": Try(
        make.docx,
        (P1, make.table("Apple"), make.table("Pear", colour=(0, 0, 255))),
        more={"a table left out": (P1, make.table("Apple")), "tables emptied": (P1, make.table(""), make.table(""))},
    ),
    "docs.check_highlighted_words": Try(make.odt, (P1, P2)),
    "docs.evaluate_strike_through_last_paragraph": Try(
        make.docx, (P1, make.run(P2, strike=True)), more={"an empty paragraph behind": (P1, P2, "")}
    ),
    "docs.evaluate_conversion": Try(
        make.docx, ("lower case", P1), NONE, fulfilled={"first part": ASKS_LITTLE, "another": ASKS_LITTLE}
    ),
    "docs.evaluate_spacing": Try(make.docx, tuple(make.paragraph(P1, line_spacing=s) for s in (1.0, 2.0, 1.5)), NONE),
    "docs.check_italic_font_size_14": Try(
        make.docx, (P1, make.run(P2, italic=True, size=177800)), more={"no italics": (P1, P2)}
    ),
    "docs.evaluate_alignment": Try(
        make.docx,
        ("One two three\tfour five six.", "One two three\tfour five."),
        NONE,
        fulfilled={"first part": ASKS_LITTLE, "another": ASKS_LITTLE},
    ),
    "docs.check_no_duplicates": Try(make.docx, ("10:00,A,x,1", "10:01,B,x,1")),
    "docs.compare_docx_lines": Try(make.docx, (P1, P2, P3)),
    "docs.compare_docx_files_and_ignore_new_lines": Try(make.docx, (P1, P2, P3)),
    "docs.compare_highlighted_text": Try(make.docx, (make.highlighted("a"), make.highlighted("b"))),
    "docs.compare_references": Try(
        make.docx, (P1, "References", "One, 2001", "Two, 2002"), options={"reference_base_result": 0.6}
    ),
    "docs.compare_unique_train_records": Try(
        make.docx, TRAINS[:2], beside=make.docx(*TRAINS), more={"nothing removed": TRAINS}
    ),
    "docs.check_file_exists": Try(make.last_of, ("/",), "etc/hostname"),
    "general.check_include_exclude": Try(
        make.joined, ("one ", "two"), rules(include=["one", "two"], exclude=["three"])
    ),
    "general.check_include_exclude absence": Try(
        make.joined,
        ("one ", "two"),
        rules(include=[], exclude=["three"]),
        fulfilled=dict.fromkeys(("nothing in it", "first part", "garbled text", "another type", "empty"), ABSENT),
    ),
    "general.exact_match": Try(make.joined, ("one ", "two"), rules(expected="one two")),
    "general.match_in_list": Try(make.joined, ("one ", "two"), rules(expected=["one two", "three"])),
    "general.literal_match": Try(make.items, ("one", "two"), ["one", "two"], options={"type": "list"}),
    "general.is_in_list": Try(make.items, ("one", "two"), rules(expected="two")),
    "general.diff_text_file": Try(make.lines, (P1, P2, P3)),
    "general.fuzzy_match": Try(make.joined, ("one ", "two"), rules(expected="one two")),
    "general.fuzzy_place_math": Try(make.docx, ("Rome", "Oslo", "Bern"), rules(expected=["Rome", "Oslo", "Bern"])),
    "general.check_csv": Try(
        make.table_text, (["a", "b"], ["1", "2"], ["3", "4"]), rules(expect=[{"a": "1"}, {"b": "4"}])
    ),
    "general.check_list": Try(make.lines, ("first", "second"), rules(expect=["^first$", "^second"])),
    "general.check_accessibility_tree": Try(
        make.tree, ("a", "b"), [{"selectors": ["document-frame[name=a]"]}, {"selectors": ["document-frame[name=b]"]}]
    ),
    "general.run_sqlite3": Try(
        make.database, ("a", "b"), rules(sql="select count(*) = 2 from words where word in ('a', 'b')")
    ),
    "general.check_json": Try(
        make.json_of,
        (("a", {"b": 1}), ("c", 2)),
        rules(expect=[{"key": ["a", "b"], "method": "eq", "ref": 1}, {"key": ["c"], "method": "eq", "ref": 2}]),
    ),
    "general.check_json absence": Try(
        make.json_of,
        (("a", 1),),
        rules(unexpect=[{"key": ["gone"], "method": "eq", "ref": 1}]),
        fulfilled={"nothing in it": ABSENT, "another": ABSENT},
    ),
    "general.check_direct_json_object": Try(make.pairs, (("a", "1"), ("b", "2")), rules(expected={"a": "1", "b": "2"})),
    "general.compare_time_in_speedtest_results": Try(
        make.table_text, (["id", "date", "speed"], ["1", f"{datetime.datetime.now():%Y-%m-%d %H:%M}", "9"]), "60"
    ),
    "general.is_included_all_json_objects": Try(make.json_of, (("a", 1), ("b", 2))),
    "general.is_gold_text_included_in_pdf": Try(make.pdf, PAGES, Gold(make.json_of(("a", PAGES[0]), ("b", PAGES[2])))),
    "general.check_line_number": Try(make.lines, ("at 10:00:00", "at 10:00:01"), rules(expected="2")),
    "general.file_contains": Try(make.lines, ("first", "second"), rules(expected=["first", "second\n"])),
    "general.compare_terminal_and_txt": Try(make.lines, (P1, P2), f"{P1}\n{P2}\n"),
    "general.compare_python_pure_text": Try(make.lines, ("a = 1", "b = 2"), ending=".py"),
    "gimp.compare_image_list": Try(make.one_of(make.picture), (1,), as_list=True),
    "gimp.compare_image_list alpha": Try(
        make.one_of(partial(make.picture, mode="RGBA"), make.shape(ground="#000000ff")), (1,), as_list=True
    ),
    "gimp.compare_image_list palette": Try(
        make.one_of(make.indexed), (1,), as_list=True, more={"other colours": (1, True)}
    ),
    "gimp.check_file_exists": Try(make.last_of, ("/",), "etc/hostname"),
    "gimp.increase_saturation": changed("nothing in it", "another", Color=0.3),
    "gimp.decrease_brightness": changed("nothing in it", Brightness=1.4),
    "gimp.check_brightness_decrease_and_structure_sim": changed(Brightness=0.7),
    "gimp.check_saturation_increase_and_structure_sim": changed(Color=1.05),
    "gimp.check_file_exists_and_structure_sim": Try(make.one_of(make.picture), (1,)),
    "gimp.check_triangle_position": Try(make.one_of(make.shape), ((20, 20, 40, 40),), NONE),
    "gimp.check_structure_sim": Try(make.one_of(make.picture), (1,)),
    "gimp.check_structure_sim_resized": Try(make.one_of(make.picture), (1,)),
    "gimp.check_contrast_increase_and_structure_sim": changed(Contrast=1.3),
    "gimp.check_config_status": Try(
        make.lines,
        ("# GIMP", '(theme "Dark")', '(layout "x")'),
        rules(key="theme", value='"Dark"'),
        fulfilled={"torn before the end": STILL_THERE},
    ),
    "gimp.check_image_size": Try(
        make.one_of(make.picture), (1,), rules(width=64, height=64), fulfilled={"another": ASKS_LITTLE}
    ),
    "gimp.check_palette_and_structure_sim": Try(make.one_of(partial(make.picture, mode="P")), (1,)),
    "gimp.check_textbox_on_leftside": Try(
        make.one_of(partial(make.shape, colour="black")), ((1, 20, 30, 40),), NONE, fulfilled={"another": ASKS_LITTLE}
    ),
    "gimp.check_image_mirror": Try(make.one_of(make.mirrored), (1,), Gold(make.picture(1))),
    "gimp.check_green_background": Try(
        make.one_of(partial(make.shape, ground="lime", colour="black")),
        ((20, 20, 40, 40),),
        Gold(make.shape((20, 20, 40, 40), colour="black")),
    ),
    "gimp.check_sharper": changed("another", Sharpness=4.0, Contrast=1.3),
    "gimp.check_image_file_size": Try(
        make.one_of(partial(make.picture, form="JPEG")),
        (1,),
        rules(max_size=600000),
        ".jpeg",
        fulfilled={"nothing in it": ASKS_LITTLE},
    ),
    "libreoffice.check_libre_locale": Try(
        make.registry, (("/org.openoffice.Setup/L10N", "ooSetupSystemLocale", "zh-CN"),), rules(locale_set=["zh-*"])
    ),
    "others.compare_epub": Try(
        make.packed,
        (("a.html", b"<html><body>one</body></html>"), ("b.html", b"<html><body>two</body></html>")),
        ending=".epub",
    ),
    "others.check_mp3_meta": Try(
        make.song,
        (("title", "Song"), ("artist", "Singer")),
        {"title": {"method": "eq", "ref": "Song"}, "artist": {"method": "eq", "ref": "Singer"}},
        fulfilled={**TORN, "torn in the middle": STILL_THERE},
        more={"tags alone": (("title", "Song"), ("artist", "Singer"), make.SILENT)},
    ),
    "pdf.check_pdf_pages": Try(make.pdf, PAGES, rules(relation="eq", ref_value=3)),
    "slides.check_presenter_console_disable": Try(
        make.registry, (("/org.openoffice.Office.Impress/Misc/Start", "EnablePresenterScreen", "false"),), NONE
    ),
    "slides.check_image_stretch_and_center": Try(make.pptx, (make.stretched,), Gold(make.pptx(make.small))),
    "slides.check_slide_numbers_color": Try(make.red_numbers, ("1", "2"), NONE, fulfilled=FIRST),
    "slides.compare_pptx_files": Try(make.pptx, ("one", "two"), options={"enable_debug": False}),
    "slides.compare_pptx_files any number": Try(
        make.pptx, ("one", "two"), options={"enable_debug": False, "examine_number_of_slides": False}
    ),
    "slides.check_strikethrough": Try(
        make.pptx,
        ("one", make.struck),
        rules(slide_index_s=[1], shape_index_s=[0], paragraph_index_s=[0]),
        more={"text that says that it is not": ("one", make.unstruck)},
    ),
    "slides.check_slide_orientation_Portrait": Try(
        lambda *p: make.pptx(*p, slide_width=1000000, slide_height=2000000) if p else make.pptx(),
        ("one", "two"),
        NONE,
        ".pptx",
        fulfilled=FIRST,
    ),
    "slides.evaluate_presentation_fill_to_rgb_distance": Try(
        make.pptx, (make.filled, make.filled), rules(rgb=[0, 0, 255]), fulfilled=FIRST
    ),
    "slides.check_left_panel": Try(make.tree, ("Slides View",), NONE),
    "slides.check_transition": Try(make.pptx, ("one", make.DISSOLVE), rules(slide_idx=1, transition_type="dissolve")),
    "slides.check_page_number_colors": Try(make.red_numbers, ("1", "2"), rules(color="red"), fulfilled=FIRST),
    "slides.check_auto_saving_time": Try(
        make.registry,
        (("/org.openoffice.Office.Common/Save/Document", "AutoSaveTimeIntervall", "3"),),
        rules(minutes=3),
    ),
    "table.compare_table names": sheet(["a", 1], make.titled, type="sheet_name"),
    "table.compare_table data": sheet(["a", "b"], [1, 2], [3, 4], type="sheet_data"),
    "table.compare_table fuzzy": sheet(
        ["a", "b"], ["c", "d"], type="sheet_fuzzy", rules=[{"range": ["A1:B2"], "type": "exact_match"}]
    ),
    "table.compare_table included": sheet(
        ["a", "b"], ["c", "d"], type="sheet_fuzzy", rules=[{"range": ["A1:B2"], "type": "includes"}]
    ),
    "table.compare_table chart": sheet(["a"], make.chart, type="chart", chart_props=["title", "type"]),
    "table.compare_table style": sheet(make.bold, ["b"], type="style", props=["font_bold"]),
    "table.compare_table freeze": sheet(["a"], make.frozen, type="freeze"),
    "table.compare_table zoom": sheet(["a"], make.zoomed, type="zoom", sheet_idx=0, method="gt", ref=200),
    "table.compare_table validation": sheet(
        ["a"], make.validated, type="data_validation", sheet_idx=0, dv_props=[{"type": {"method": "eq", "ref": "list"}}]
    ),
    "table.compare_table rows": sheet(["a"], make.hidden_row, type="row_props", props=["hidden"]),
    "table.compare_table columns": sheet(["a"], make.wide_column, type="col_props", props=["width"]),
    "table.compare_table filter": sheet(["a"], make.filtered, type="filter"),
    "table.compare_table cell": sheet(
        ["a", "b"],
        ["c", "d"],
        type="check_cell",
        sheet_idx=0,
        coordinate="B2",
        props={"value": {"method": "eq", "ref": "d"}},
    ),
    "table.compare_csv": Try(make.table_text, (["a", "b"], ["1", "2"], ["3", "4"])),
    "table.compare_conference_city_in_order": Try(
        make.cities, tuple(f"City {n}" for n in range(21)), rules(expected=[f"City {n}" for n in range(21)])
    ),
    "thunderbird.check_thunderbird_prefs": Try(
        make.lines,
        ('user_pref("a", true);', 'user_pref("b", 2);'),
        rules(expect={"a": {"method": "eq", "ref": True}, "b": {"method": "eq", "ref": 2}}),
        ".js",
    ),
    "thunderbird.check_thunderbird_prefs absence": Try(
        make.lines,
        ('user_pref("a", true);',),
        rules(unexpect={"b": {"method": "eq", "ref": 2}}),
        ".js",
        fulfilled=dict.fromkeys(OF_FILES, ABSENT),
    ),
    "thunderbird.check_thunderbird_filter": Try(
        make.lines,
        ('name="A"', 'enabled="yes"', 'condition="AND (subject,contains,x)"'),
        rules(expect=[{"name": "A", "condition": ["AND (subject,contains,x)"]}]),
        ".dat",
    ),
    "thunderbird.check_thunderbird_folder": Try(make.mails, ("first", "second")),
    "vlc.is_vlc_playing": Try(make.playing, ("a.mp4",), rules(type="file_name", file_name="a.mp4")),
    "vlc.is_vlc_recordings_folder": Try(
        make.lines, ("[core]", "input-record-path=/home/user"), rules(recording_file_path="/home/user")
    ),
    "vlc.is_vlc_fullscreen": Try(make.pairs, (("width", 200), ("height", 150)), {"width": 200, "height": 150}),
    "vlc.compare_images": Try(make.one_of(make.picture), (1,)),
    "vlc.compare_audios": Try(make.sound, (200.0, 700.0, 300.0)),
    "vlc.compare_videos": Try(make.film, (1, 2, 3)),
    "vlc.check_qt_slider_colours": Try(
        make.lines,
        ("[qt]", "qt-slider-colours=1;2;3;4;5;6;7;8;9;10;11;12"),
        rules(type="blackish"),
        more={"one number": ("[qt]", "qt-slider-colours=1")},
    ),
    **dict(
        vlc_option(*option)
        for option in (
            ("qt", "qt-bgcone", "0"),
            ("qt", "qt-max-volume", "200"),
            ("qt", "qt-minimal-view", "1"),
            ("core", "global-key-play-pause", "Space", "1"),
            ("core", "one-instance-when-started-from-file", "0"),
        )
    ),
    "vscode.check_json_keybindings": Try(make.json_list, ({"key": "a"}, {"key": "b"}), rules(expected={"key": "b"})),
    "vscode.check_json_settings": Try(make.json_of, (("a", 1), ("b", 2)), rules(expected={"a": 1, "b": 2})),
    "vscode.compare_text_file": Try(make.lines, (P1, P2)),
    "vscode.compare_zip_files": Try(make.packed, (("a", b"one"), ("b.pdf", make.pdf("two words"))), ending=".zip"),
    "vscode.compare_config": Try(make.exact, ("a", "b"), rules(expected="a\nb")),
    "vscode.compare_answer": Try(make.joined, ("one ", "two"), rules(expected="one two")),
    "vscode.is_extension_installed": Try(make.joined, ("a.b\n", "c.d\n"), rules(type="contain", expected="c.d")),
    "vscode.is_extension_installed absence": Try(
        make.joined,
        ("a.b\n",),
        rules(type="not_contain", expected="c.d"),
        fulfilled=dict.fromkeys(("nothing in it", "garbled text", "another type", "empty"), ABSENT),
    ),
    "vscode.check_html_background_image": Try(
        make.html, ("<p>a</p>", "<style>body {background-image: url('a.png')}</style>"), rules(value="a.png")
    ),
    "vscode.compare_result_files": Try(
        make.exact,
        ("The mean is", "7.25"),
        Gold(b"7.25"),  # no number that the path of a temporary folder may have
        ".txt",
        more={
            "part of another number": ("The mean is 17.25",),
            "all numbers": (" ".join(f"{number}.25" for number in range(100)),),
        },
    ),
}


NOT_TRIED: dict[str, str] = {
    "docs.get_unique_train_ids": "a part of compare_unique_train_records, which is tried",
    "gimp.compare_triangle_positions": "finds all of a picture for its triangle: it scores 0 for any two of one size. "
    "No task of OSWorld's asks for it",
    "vscode.check_python_file_by_gold_file": "has no body in desktop-env 1.0.2: no task can score by it",
    "__init__.infeasible": "has no body: the client scores by the agent's last word",
    "vscode.check_python_file_by_test_suite": "imports the policy's file: refused, in test_attacks.py",
    "docs.compare_image_text": "needs easyocr and its models, which the tests' environment has not; it asks for "
    "words in a picture, which have to be there",
}

HEAVY = "heavy"
"""The part of the table that takes more than some seconds; the rest is `quick`."""


def is_heavy(name: str) -> bool:
    """Whether a row belongs to that part: libraries that load for seconds, or documents of many parts."""
    return name.startswith(("docs.", "slides.", "vlc.compare_audios", "vlc.compare_videos"))


if __name__ == "__main__":
    path, part = sys.argv[1:]
    main({name: case for name, case in TRIES.items() if is_heavy(name) == (part == HEAVY)}, path)
