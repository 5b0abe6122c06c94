"""What the page of a task's explored trials is asked for, and what it says, as plain data."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from tunewright.db.bounds import LARGEST_ID
from tunewright.search_space.measurement import Status

from ...http.paging import Cursor
from ...http.problems import invalid
from ...http.schemas.base import Answer, Digest
from ..drawing.parallel import BandKind
from ..page_query import PageQuery
from ..views import LONGEST, TargetName, Text
from .columns import KNOB, LONGEST_RANGE, RANGED, ValueRange
from .importance import ImportanceShown
from .schedules import TaskHead, TrialBrief
from .view import JobName

RangeText = Annotated[str, Field(max_length=LONGEST_RANGE)]

ColumnName = Annotated[str, Field(max_length=LONGEST + len(KNOB))]


def _unless_empty(value: object) -> object:
    """What a field of a form says, which sends its name even where nothing is in it."""
    return None if value == "" else value


class ExplorerQuery(Answer):
    """What of a task's trials was asked for. Ranges are `8..32`, `8..`, `..32`, or one number."""

    target: Digest = Field(description="Key of the target that it was measured on.")
    sketch: Annotated[str, Field(max_length=LONGEST)] = Field(
        default="", description="Only trials of this sketch, as `name.version`; empty: of all."
    )
    job: Annotated[int | None, BeforeValidator(_unless_empty)] = Field(
        default=None, ge=1, le=LARGEST_ID, description="Only trials of this job, in all that the page says."
    )
    status: tuple[Status, ...] = Field(
        default=(), max_length=len(Status), description="Only trials that ended in one of these ways."
    )
    x: ColumnName = Field(default="trial", description="Column of the scatter's x axis, such as `knob.tile`.")
    y: ColumnName = Field(default="time", description="Column of its y axis.")
    time: RangeText = Field(default="", description="Range of the time as a trial, in ms.")
    gflops: RangeText = Field(default="", description="Range of what is computed a second, in GFLOP/s.")
    predicted: RangeText = Field(default="", description="Range of the predicted time, in ms.")
    trial: RangeText = Field(default="", description="Range of the number of the trial within its job.")
    sort: ColumnName = Field(default="time", description="Column that the table is sorted by.")
    desc: bool = Field(default=False, description="Whether it begins with the largest.")
    cursor: Cursor = None


class ExplorerAsked(ExplorerQuery, PageQuery):
    """What a page of trials was asked for."""

    in_path = frozenset({"task", "knobs"})

    task: Digest
    knobs: dict[ColumnName, RangeText] = Field(description="Ranges of knobs, by name; in addresses `knob.NAME`.")

    def query(self, **changes: Any) -> dict[str, Any]:
        """The same as of any page, with the ranges of knobs."""
        return super().query(**{KNOB + name: text for name, text in self.knobs.items()} | changes)

    @property
    def unranged(self) -> dict[str, str]:
        """Changes to the query that take all ranges back."""
        return dict.fromkeys([*RANGED, *(KNOB + name for name in self.knobs)], "")

    def ranges(self) -> dict[str, ValueRange]:
        """The ranges, by the name of the column. Raises Problem."""
        texts = {name: getattr(self, name) for name in RANGED} | {
            KNOB + name: text for name, text in self.knobs.items()
        }
        found = {}
        for name, text in texts.items():
            try:
                if text.strip():
                    found[name] = ValueRange.of(text)
            except ValueError as error:
                raise invalid("query", [name], str(error)) from error
        return found


class ColumnShown(Answer):
    """A column that may be an axis."""

    name: Annotated[Text, Field(description="In addresses.")]
    label: Text
    words: Text = Field(description="What it is; empty where the name says it.")
    written: Text = Field(description="The unit of its ranges; empty where it has none.")
    range: Text = Field(description="What is chosen of it; empty: all.")
    hint: Text = Field(description="The range of all values; empty where there are none.")
    is_brushable: bool = Field(description="Whether ranges of it can be chosen.")


class SketchShown(Answer):
    """A sketch of which there are trials in the sample."""

    name: Text = Field(description="With its version.")
    sampled: int = Field(description="Trials of it in the sample.")


class BandShown(Answer):
    """Marks behind each other that are drawn alike."""

    kind: BandKind
    count: int
    is_kept: bool = Field(description="Whether the ranges hold them.")


class MarksShown(Answer):
    """The trials that are drawn, each at the same place of all lists."""

    ids: list[int]
    columns: dict[ColumnName, list[float | None]] = Field(
        description="Their values by column, those of the axes alone."
    )
    bands: list[BandShown] = Field(description="How they are drawn, in their order.")
    axes: list[ColumnName] = Field(description="The columns of the parallel coordinates, from left to right.")


class ExploredTrial(TrialBrief):
    """A trial in the table."""

    gflops: float | None
    predicted_ms: float | None = Field(description="By the newest cost model; null: not known.")
    mark: int | None = Field(description="Its place among the marks; null: it is not in the sample.")


class ExplorerPage(Answer):
    """The trials of a task on a target."""

    asked: ExplorerAsked
    task: TaskHead
    target: TargetName
    job: JobName | None = Field(description="The job whose trials all is of; null: of all jobs.")
    trials: int = Field(description="Trials of the task on the target that were timed here, of the job or of all.")
    imported: int = Field(description="Those of any job that were imported: they are in no chart and no table.")
    sampled: int = Field(description="Of the former, those in the sample.")
    counts: dict[Status, int] = Field(description="How all of them ended.")
    sketches: list[SketchShown]
    columns: list[ColumnShown]
    importance: ImportanceShown | None = Field(description="Null while that is being found out.")
    marks: MarksShown
    shown: int = Field(description="Trials that the table has on all its pages.")
    is_of_sample: bool = Field(description="Whether `shown` counts, and the table lists, trials of the sample alone.")
    rows: list[ExploredTrial]
    next: str | None = Field(description="The `cursor` of the page behind this one; null on the last.")

    @property
    def chosen(self) -> list[ColumnShown]:
        """The columns of which something is chosen."""
        return [column for column in self.columns if column.range]

    @property
    def kept_count(self) -> int:
        """Marks that the ranges hold."""
        return sum(band.count for band in self.marks.bands if band.is_kept)
