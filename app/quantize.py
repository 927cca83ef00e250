"""`octavo quantize`: its flags, and from them to a run of engine/quant/calibrate."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.engine.errors import OctavoError

if TYPE_CHECKING:
    from octavo.engine.quant.calibrate.run import Job

TOKENS = 65_536
EVAL_TOKENS = 16_384

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="As model.id in config.yaml; in full precision.")]
OutArgument = Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write: a new or an empty one.")]
Method = Annotated[str, typer.Option(help="awq, gptq, smoothquant, or rtn (round to nearest).")]
Bits = Annotated[int | None, typer.Option(help="4 or 8.", show_default="4; 8 for smoothquant")]
GroupSize = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Neighbours that share a scale: 128, 64 or 32; 0 is the whole row.",
        show_default="the largest that divides all rows; 0 for 8 bits",
    ),
]
Symmetric = Annotated[
    bool | None,
    typer.Option(
        "--symmetric/--asymmetric", help="Without or with zero points.", show_default="asymmetric; symmetric for 8 bits"
    ),
]
FileFormat = Annotated[str, typer.Option("--format", help="compressed-tensors or awq.")]
Calibration = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A text in UTF-8, like what the model will be used for.")
]
Tokens = Annotated[int, typer.Option(min=1, help="Tokens of it to calibrate with.")]
Evaluate = Annotated[
    Path | None,
    typer.Option("--eval", metavar="FILE", help="A text to measure perplexity with.", show_default="a part held back"),
]
EvalTokens = Annotated[int, typer.Option(min=0, help="Tokens to measure with at most; 0 measures nothing.")]
ActOrder = Annotated[bool, typer.Option("--act-order/--no-act-order", help="For gptq: the loudest inputs first.")]
Alpha = Annotated[float, typer.Option(help="For smoothquant: how much of the activations' loudness moves.")]
DType = Annotated[str, typer.Option("--dtype", help="Compute in auto, bfloat16, float16 or float32.")]
Device = Annotated[str | None, typer.Option(metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a run that was interrupted.")]
Restart = Annotated[bool, typer.Option("--restart", help="Remove what an interrupted run left, and begin anew.")]
ConfigPath = Annotated[Path | None, typer.Option("--config", metavar="PATH", help="Use this config.yaml.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show traces of errors.")]


def quantize_command(
    context: typer.Context,
    model: ModelArgument,
    out: OutArgument,
    method: Method = "awq",
    bits: Bits = None,
    group_size: GroupSize = None,
    symmetric: Symmetric = None,
    file_format: FileFormat = "compressed-tensors",
    calibration: Calibration = None,
    tokens: Tokens = TOKENS,
    evaluate: Evaluate = None,
    eval_tokens: EvalTokens = EVAL_TOKENS,
    act_order: ActOrder = True,
    alpha: Alpha = 0.5,
    dtype: DType = "auto",
    device: Device = None,
    resume: Resume = False,
    restart: Restart = False,
    config: ConfigPath = None,
    debug: Debug = False,
) -> None:
    """Write a model with 4-bit or 8-bit weights, rounded with a text as guide, that vLLM and transformers load too."""
    overrides = {} if device is None else {"model.device": device}
    values = context.obj.settings(config, **overrides).values.model
    import torch

    from octavo.app.library import resolve_model
    from octavo.engine.quant.calibrate.errors import QuantizeError
    from octavo.engine.quant.calibrate.place import check_place
    from octavo.engine.quant.calibrate.run import Job
    from octavo.engine.quant.calibrate.settings import Settings
    from octavo.engine.quant.calibrate.text import read_text
    from octavo.engine.run.resolve import DTYPES, resolve_threads

    named: Any = (method, bits, group_size, symmetric, file_format, act_order, alpha)
    settings = Settings(*named).checked()
    if dtype not in ("auto", *DTYPES):
        raise QuantizeError(f"--dtype is {dtype!r}.", remedy=f"Use one of auto, {', '.join(DTYPES)}.")
    if calibration is None and method != "rtn":
        raise QuantizeError(
            f"{method} needs a text to calibrate with.",
            remedy="Add --calibration FILE: some hundred kilobytes of text like what the model will be used for.",
        )
    text, measured = read_text(calibration), read_text(evaluate) if evaluate is not None else None
    out = out.expanduser().absolute()
    check_place(out, resume, restart)  # before anything is fetched
    job = Job(
        model=resolve_model(model, folders=values.folders, revision=values.revision, progress=_Fetching()),
        out=out,
        settings=settings,
        text=text,
        text_name=calibration.name if calibration is not None else "the documentation that Python ships",
        tokens=tokens,
        evaluate=measured,
        eval_tokens=eval_tokens,
        device=values.device,
        dtype=dtype,
        resume=resume,
        restart=restart,
    )
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(resolve_threads(None))
    _run(job)


def _run(job: Job) -> None:
    from octavo.engine.quant.calibrate.run import quantize
    from octavo.engine.quant.calibrate.state import StateFolder

    kept = StateFolder(job.out)
    try:
        report = quantize(job, _say)
    except KeyboardInterrupt:
        remedy = "Run the same command with --resume to go on." if kept.exists() else None
        raise OctavoError("Stopped.", remedy=remedy) from None
    except OSError as error:
        remedy = "When that is put right, run the same command with --resume to go on." if kept.exists() else None
        raise OctavoError(
            f"{error.filename or job.out} cannot be written ({error.strerror or error}).", remedy=remedy
        ) from error
    for line in report.lines():
        print(line)
    print(job.out)


class _Fetching:
    """A line for every tenth of a model that has to be fetched first."""

    def __init__(self) -> None:
        self._last = -1

    def __call__(self, stage: str, done: int, total: int, source: str) -> None:
        tenth = done * 10 // max(total, 1)
        if tenth != self._last:
            self._last = tenth
            _say(f"{stage} from {source}: {tenth * 10} % of {total / 2**20:.0f} MiB")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
