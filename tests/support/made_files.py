"""Small files of each kind that OSWorld's metrics read, made of their parts: `docx("a paragraph", "another")`.

A part is text, or what adds itself to the document. Without parts a file is as empty as its kind allows.
"""

from __future__ import annotations

import csv
import io
import json
import random
import sqlite3
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SILENT = ("genre", "None")
"""Among a song's tags: it has no sound."""


def saved(document: Any) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def docx(*parts: Any) -> bytes:
    from docx import Document

    document = Document()
    for part in parts:
        part(document) if callable(part) else document.add_paragraph(part)
    return saved(document)


def run(text: str, **font: Any) -> Callable[[Any], None]:
    def add(document: Any) -> None:
        made = document.add_paragraph().add_run(text)
        for name, value in font.items():
            setattr(made.font, name, value)

    return add


def paragraph(text: str, **form: Any) -> Callable[[Any], None]:
    def add(document: Any) -> None:
        made = document.add_paragraph(text)
        for name, value in form.items():
            setattr(made.paragraph_format, name, value)

    return add


def table(*words: str, colour: tuple[int, int, int] = (255, 0, 0)) -> Callable[[Any], None]:
    def add(document: Any) -> None:
        from docx.shared import RGBColor

        made = document.add_table(len(words), 1)
        for row, word in zip(made.rows, words, strict=True):
            row.cells[0].paragraphs[0].add_run(word).font.color.rgb = RGBColor(*colour)

    return add


def drawing(document: Any) -> None:
    document.add_picture(io.BytesIO(picture(1)))


def page_break(document: Any) -> None:
    document.add_page_break()


def no_section(document: Any) -> None:
    for section in document.element.body.xpath("./w:sectPr"):
        document.element.body.remove(section)


def footer(document: Any) -> None:
    document.sections[0].footer.paragraphs[0].text = "page 1"


def equation(document: Any) -> None:
    from docx.oxml import OxmlElement

    document.add_paragraph().add_run()._element.append(OxmlElement("w:object"))


def tab_stop(document: Any, at: int = 2_000_000) -> None:
    document.add_paragraph("left\tright").paragraph_format.tab_stops.add_tab_stop(at)


def highlighted(text: str) -> Callable[[Any], None]:
    return run(text, highlight_color=7)


def odt(*parts: str) -> bytes:
    from odf.opendocument import OpenDocumentText
    from odf.text import P

    document = OpenDocumentText()
    for part in parts:
        document.text.addElement(P(text=part))
    buffer = io.BytesIO()
    document.write(buffer)
    return buffer.getvalue()


def pptx(*parts: Any, **sizes: Any) -> bytes:
    from pptx import Presentation

    presentation = Presentation()
    for name, value in sizes.items():
        setattr(presentation, name, value)
    for part in parts:
        slide = presentation.slides.add_slide(presentation.slide_layouts[6])
        if callable(part):
            part(slide)
        else:
            slide.shapes.add_textbox(0, 0, 900_000, 900_000).text_frame.text = part
    return saved(presentation)


def struck(slide: Any) -> None:
    frame = slide.shapes.add_textbox(0, 0, 900_000, 900_000).text_frame
    frame.text = "struck"
    frame.paragraphs[0].runs[0].font._element.set("strike", "sngStrike")


def unstruck(slide: Any) -> None:
    struck(slide)
    slide.shapes[0].text_frame.paragraphs[0].runs[0].font._element.set("strike", "noStrike")


def filled(slide: Any) -> None:
    from pptx.dml.color import RGBColor

    slide.background.fill.solid()
    slide.background.fill.fore_color.rgb = RGBColor(0, 0, 255)


def stretched(slide: Any) -> None:
    slide.shapes.add_picture(io.BytesIO(picture(1)), 0, 0, 9_144_000, 6_858_000)


def small(slide: Any) -> None:
    slide.shapes.add_picture(io.BytesIO(picture(1)), 0, 0, 1_000_000, 1_000_000)


def xml_of(*parts: str) -> Callable[[Any], None]:
    def add(slide: Any) -> None:
        from lxml import etree

        for part in parts:
            slide._element.append(etree.fromstring(part))

    return add


P = 'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"'
DISSOLVE = xml_of(f"<p:transition {P}><p:dissolve/></p:transition>")


def red_numbers(*parts: str) -> bytes:
    """A presentation with a number on its slide, and red ones in its master."""
    from pptx import Presentation
    from pptx.dml.color import RGBColor

    presentation = Presentation()
    if parts:
        holder = next(iter(presentation.slide_masters[0].placeholders))
        holder.text_frame.text = "<number>"
        holder.text_frame.paragraphs[0].font.color.rgb = RGBColor(255, 0, 0)
        extra = presentation.slide_masters[0].placeholders[1]
        extra.text_frame.paragraphs[0].font.color.rgb = RGBColor(255, 0, 0)
    for part in parts:
        slide = presentation.slides.add_slide(presentation.slide_layouts[6])
        slide.shapes.add_textbox(0, 0, 900_000, 900_000).text_frame.text = part
    return saved(presentation)


def xlsx(*parts: Any) -> bytes:
    from openpyxl import Workbook

    book = Workbook()
    for part in parts:
        part(book.active) if callable(part) else book.active.append(part)
    return saved(book)


def titled(sheet: Any) -> None:
    sheet.title = "Sales"


def bold(sheet: Any) -> None:
    from openpyxl.styles import Font

    sheet["A1"] = "bold"
    sheet["A1"].font = Font(bold=True)


def chart(sheet: Any) -> None:
    from openpyxl.chart import BarChart, Reference

    sheet.append([1, 2, 3])
    made = BarChart()
    made.title = "Sales"
    made.add_data(Reference(sheet, min_col=1, min_row=1, max_col=3))
    sheet.add_chart(made, "E5")


def frozen(sheet: Any) -> None:
    sheet.freeze_panes = "B2"


def zoomed(sheet: Any) -> None:
    sheet.sheet_view.zoomScale = 260


def validated(sheet: Any) -> None:
    from openpyxl.worksheet.datavalidation import DataValidation

    made = DataValidation(type="list", formula1='"Pass,Fail"')
    made.add("D2:D29")
    sheet.add_data_validation(made)


def hidden_row(sheet: Any) -> None:
    sheet.row_dimensions[3].hidden = True


def wide_column(sheet: Any) -> None:
    sheet.column_dimensions["C"].width = 40


def filtered(sheet: Any) -> None:
    sheet.auto_filter.ref = "A1:B9"
    sheet.auto_filter.add_filter_column(0, ["x"])


def cities(*names: str) -> bytes:
    return xlsx(*[["", "", name] for name in ["city", *names]])


def pdf(*pages: Any) -> bytes:
    import fitz

    document = fitz.open()
    for page in pages or ("",):
        made = document.new_page()
        if isinstance(page, bytes):
            made.insert_image(made.rect, stream=page)
        else:
            made.insert_text((72, 72), page)
    content: bytes = document.tobytes()
    return content


def picture(seed: int, size: tuple[int, int] = (64, 64), mode: str = "RGB", form: str = "PNG", **change: Any) -> bytes:
    """Blocks of colours drawn from `seed`: as much structure as a photograph has."""
    from PIL import Image, ImageEnhance

    draw = random.Random(seed)
    blocks = Image.new("RGB", (8, 8))
    blocks.putdata([tuple(draw.randrange(40, 200) for _ in range(3)) for _ in range(64)])
    made = blocks.resize(size, Image.Resampling.BICUBIC)
    for name, factor in change.items():
        made = getattr(ImageEnhance, name)(made).enhance(factor)
    return encoded(made.quantize(200) if mode == "P" else made.convert(mode), form)


def encoded(image: Any, form: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form)
    return buffer.getvalue()


def indexed(seed: int, recoloured: bool = False) -> bytes:
    """A picture of numbered colours; the same numbers of others where it is recoloured."""
    from PIL import Image

    made = Image.open(io.BytesIO(picture(seed, mode="P")))
    if recoloured:
        colours = made.getpalette() or []
        made.putpalette([255 - value for value in colours])
    return encoded(made)


def mirrored(seed: int) -> bytes:
    from PIL import Image

    return encoded(Image.open(io.BytesIO(picture(seed))).transpose(Image.Transpose.FLIP_LEFT_RIGHT))


def shape(
    where: tuple[int, ...] = (), ground: str = "white", colour: str = "yellow", size: tuple[int, int] = (60, 60)
) -> bytes:
    """A square of `colour` at `where`, if anywhere."""
    from PIL import Image, ImageDraw

    made = Image.new("RGB", size, ground)
    if where:
        ImageDraw.Draw(made).rectangle(where, colour)
    return encoded(made)


def one_of(maker: Callable[..., bytes], nothing: bytes | None = None) -> Callable[..., bytes]:
    """A maker of a file without parts: without its only one it makes `nothing`, or a grey picture."""

    def make(*parts: Any) -> bytes:
        return maker(*parts) if parts else shape(ground="grey") if nothing is None else nothing

    make.suffix = ".png"
    return make


def html(*parts: str) -> bytes:
    return f"<html><body>{''.join(parts)}</body></html>".encode() if parts else b""


def lines(*parts: str) -> bytes:
    return "".join(f"{part}\n" for part in parts).encode()


def exact(*parts: str) -> bytes:
    return "\n".join(parts).encode()


def table_text(*rows: list[str]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer).writerows(rows)
    return buffer.getvalue().encode()


def json_of(*pairs: tuple[str, Any]) -> bytes:
    return json.dumps(dict(pairs)).encode()


def json_list(*items: Any) -> bytes:
    return json.dumps(items).encode()


def packed(*entries: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(*entries: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in entries:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def database(*names: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        connection = sqlite3.connect(f"{folder}/db")
        connection.execute("create table words (word text)")
        connection.executemany("insert into words values (?)", [(name,) for name in names])
        connection.commit()
        connection.close()
        return Path(f"{folder}/db").read_bytes()


def sound(*pitches: float, form: str = "WAV") -> bytes:
    import numpy
    import soundfile

    times = numpy.linspace(0, 0.4, 8820, endpoint=False)
    waves = [numpy.sin(2 * numpy.pi * (pitch + 900 * times) * times) * 0.5 for pitch in pitches]
    buffer = io.BytesIO()
    soundfile.write(buffer, numpy.concatenate([numpy.zeros(0), *waves]), 22050, format=form)
    return buffer.getvalue()


def song(*tags: tuple[str, str]) -> bytes:
    """Without sound where `SILENT` is one of the tags."""
    from mutagen.easyid3 import EasyID3

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "song.mp3"
        path.write_bytes(b"" if SILENT in tags else sound(300, 500, form="MP3"))
        made = EasyID3()
        for name, value in tags:
            made[name] = value
        made.save(path)
        return path.read_bytes()


def film(*shades: int) -> bytes:
    """Fifty frames for each of `shades`, in motion JPEG."""
    import cv2
    import numpy

    with tempfile.TemporaryDirectory() as folder:
        writer = cv2.VideoWriter(f"{folder}/a.avi", cv2.VideoWriter.fourcc(*"MJPG"), 25, (64, 48))
        for shade in shades:
            drawn = numpy.random.default_rng(shade).integers(0, 255, (6, 8, 3), numpy.uint8)
            for _ in range(50):
                writer.write(cv2.resize(drawn, (64, 48)))
        writer.release()
        return Path(f"{folder}/a.avi").read_bytes()


def registry(*items: tuple[str, str, str]) -> bytes:
    """LibreOffice's settings."""
    body = "".join(
        f'<item oor:path="{path}"><prop oor:name="{name}"><value>{value}</value></prop></item>'
        for path, name, value in items
    )
    return f'<oor:items xmlns:oor="http://openoffice.org/2001/registry">{body}</oor:items>'.encode()


def tree(*names: str) -> str:
    frames = "".join(f'<document-frame name="{name}"/>' for name in names)
    return f"<desktop>{frames}</desktop>"


def playing(*names: str) -> bytes:
    about = "".join(f'<info name="filename">{name}</info>' for name in names)
    about = f'<information><category name="meta">{about}</category></information>'
    return f"<root><state>playing</state>{about}</root>".encode()


def mails(*bodies: str) -> bytes:
    return "".join(
        f"From - Thu Jan 01\nX-Mozilla-Status: 0001\nSubject: {body}\n\n{body}\n\n" for body in bodies
    ).encode()


def joined(*parts: str) -> str:
    return "".join(parts)


def items(*parts: Any) -> list[Any]:
    return list(parts)


def pairs(*parts: tuple[str, Any]) -> dict[str, Any]:
    return dict(parts)


def last_of(*parts: Any) -> Any:
    return parts[-1] if parts else ""


for maker in (docx, odt, pptx, xlsx, pdf, html):
    maker.suffix = f".{maker.__name__}"
OTHERS = {
    ".pptx": [red_numbers],
    ".xlsx": [cities],
    ".tar.gz": [tarred],
    ".json": [json_of, json_list],
    ".mbox": [mails],
}
OTHERS |= {".xcu": [registry], ".db": [database], ".csv": [table_text], ".mp3": [song], ".wav": [sound], ".avi": [film]}
OTHERS |= {".txt": [lines, exact], ".xml": [playing]}
for suffix, makers in OTHERS.items():
    for maker in makers:
        maker.suffix = suffix
