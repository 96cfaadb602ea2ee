"""Office files for generated tasks: xlsx, docx and pdf with the same bytes always.

The libraries put today's date into what they write; it is taken out again, since
a task is named by a digest of its files. PDF pages are not compressed, so that a
task can be solved with the standard library alone.
"""

from __future__ import annotations

import datetime
import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

from clawjax import errors

_NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


def _missing(error: ImportError) -> errors.TaskError:
  return errors.TaskError(
    f'tasks with office files need {error.name}: pip install clawjax[tasks]'
  )


def xlsx(sheets: Mapping[str, Sequence[Sequence[Any]]]) -> bytes:
  """A workbook: sheet title -> rows of cells."""
  try:
    import openpyxl
  except ImportError as error:
    raise _missing(error) from None
  book = openpyxl.Workbook()
  book.remove(book.active)
  for title, rows in sheets.items():
    sheet = book.create_sheet(title)
    for row in rows:
      sheet.append(list(row))
  stream = io.BytesIO()
  book.save(stream)
  return _undated(stream.getvalue())


def docx(title: str, paragraphs: Sequence[str]) -> bytes:
  """A text document with a heading."""
  try:
    import docx as library
  except ImportError as error:
    raise _missing(error) from None
  document = library.Document()
  document.add_heading(title, level=1)
  for text in paragraphs:
    document.add_paragraph(text)
  stream = io.BytesIO()
  document.save(stream)
  return _undated(stream.getvalue())


def pdf(title: str, lines: Sequence[str]) -> bytes:
  """One page with a title and lines of text."""
  try:
    import fpdf
  except ImportError as error:
    raise _missing(error) from None
  page = fpdf.FPDF()
  page.set_compression(False)
  page.set_creation_date(_NOON)
  page.add_page()
  page.set_font('Helvetica', style='B', size=16)
  page.cell(text=title, new_x='LMARGIN', new_y='NEXT')
  page.set_font('Helvetica', size=11)
  for line in lines:
    page.cell(text=line, new_x='LMARGIN', new_y='NEXT')
  return bytes(page.output())


def _undated(data: bytes) -> bytes:
  """The zip file with one date for all."""
  stream = io.BytesIO()
  with (
    zipfile.ZipFile(io.BytesIO(data)) as old,
    zipfile.ZipFile(stream, 'w') as new,
  ):
    for part in old.infolist():
      body = old.read(part)
      if part.filename == 'docProps/core.xml':
        body = re.sub(
          rb'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ', b'2026-01-01T12:00:00Z', body
        )
      info = zipfile.ZipInfo(part.filename, (2026, 1, 1, 12, 0, 0))
      new.writestr(info, body, zipfile.ZIP_DEFLATED)
  return stream.getvalue()
