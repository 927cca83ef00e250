"""The command line: flags and commands. What takes time to import is imported once it is known to be wanted."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.exceptions import TyperException

from octavo.app.quantize import quantize_command
from octavo.engine.errors import DeviceError, OctavoError

if TYPE_CHECKING:
    from octavo.app.config import Settings

HELP = "Octavo: several chats at once with a language model on this machine. Without a command: octavo app."

cli = typer.Typer(
    help=HELP,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_cli = typer.Typer(help="Look at and check config.yaml.", no_args_is_help=True, rich_markup_mode=None)
models_cli = typer.Typer(help="The models on this disk.", no_args_is_help=True, rich_markup_mode=None)
cli.add_typer(config_cli, name="config")
cli.add_typer(models_cli, name="models")
cli.command("quantize")(quantize_command)

ConfigPath = Annotated[Path | None, typer.Option("--config", metavar="PATH", help="Use this config.yaml.")]
Host = Annotated[str | None, typer.Option(help="Address to listen on.")]
Port = Annotated[str | None, typer.Option(metavar="PORT", help="Port to listen on.")]
Model = Annotated[str | None, typer.Option(metavar="ID_OR_PATH", help="Model to load, as model.id in config.yaml.")]
Device = Annotated[str | None, typer.Option(metavar="DEVICE", help="auto, cpu, cuda or cuda:N.")]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Do not open the browser.")]
LogLevel = Annotated[str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")]
Debug = Annotated[bool, typer.Option("--debug", help="Log everything; show traces of errors.")]
InWindow = Annotated[bool, typer.Option("--window", help="Open the page in a window of its own (needs pywebview).")]
_BENCH_MODELS = ("--model", "--draft-model")  # flags of bench that name a model as model.id does
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="As model.id in config.yaml.")]


@dataclass(frozen=True, slots=True)
class Flags:
    """What stands before the command; the same flags behind the command go before them."""

    config: Path | None = None
    overrides: tuple[tuple[str, object], ...] = ()

    def settings(self, config: Path | None = None, *, create: bool = False, **overrides: object) -> Settings:
        from octavo.app.config import load_settings

        return load_settings(config or self.config, {**dict(self.overrides), **overrides}, create=create)


def _overrides(
    host: str | None,
    port: str | None,
    model: str | None,
    device: str | None,
    no_browser: bool,
    log_level: str | None,
    debug: bool,
) -> dict[str, object]:
    given: dict[str, object | None] = {
        "server.host": host,
        "server.port": port,
        "server.open_browser": False if no_browser else None,
        "model.id": model,
        "model.device": device,
        "app.log_level": "debug" if debug else log_level,
    }
    return {key: value for key, value in given.items() if value is not None}


def _version(wanted: bool) -> None:
    if wanted:
        from octavo.app.version import octavo_version

        print(f"octavo {octavo_version()}")
        raise typer.Exit


@cli.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    config: ConfigPath = None,
    host: Host = None,
    port: Port = None,
    model: Model = None,
    device: Device = None,
    no_browser: NoBrowser = False,
    log_level: LogLevel = None,
    debug: Debug = False,
    window: InWindow = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version.")
    ] = False,
) -> int:
    overrides = _overrides(host, port, model, device, no_browser, log_level, debug)
    context.obj = Flags(config, tuple(overrides.items()))
    return _start(context.obj, None, {}, page=True, window=window) if context.invoked_subcommand is None else 0


@cli.command("app")
def _app(
    context: typer.Context,
    config: ConfigPath = None,
    host: Host = None,
    port: Port = None,
    model: Model = None,
    device: Device = None,
    no_browser: NoBrowser = False,
    log_level: LogLevel = None,
    debug: Debug = False,
    window: InWindow = False,
) -> int:
    """Start the page and the API, and open the browser (the default)."""
    overrides = _overrides(host, port, model, device, no_browser, log_level, debug)
    return _start(context.obj, config, overrides, page=True, window=window)


@cli.command("serve")
def _serve(
    context: typer.Context,
    config: ConfigPath = None,
    host: Host = None,
    port: Port = None,
    model: Model = None,
    device: Device = None,
    no_browser: NoBrowser = False,
    log_level: LogLevel = None,
    debug: Debug = False,
) -> int:
    """Start the API without the page; ends if its model cannot be loaded."""
    overrides = _overrides(host, port, model, device, no_browser, log_level, debug)
    return _start(context.obj, config, overrides, page=False)


def _start(flags: Flags, config: Path | None, overrides: dict[str, object], *, page: bool, window: bool = False) -> int:
    settings = flags.settings(config, create=True, **overrides)
    from octavo.app.start import start

    return start(settings, page=page, window=window)


@cli.command("install-shortcut")
def _install_shortcut(
    context: typer.Context,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the entry again.")] = False,
    debug: Debug = False,
) -> None:
    """Put Octavo into the start menu (Windows) or among the applications (Linux)."""
    from octavo.app import shortcut

    if not remove:
        print(shortcut.install())
        return
    for path in shortcut.remove():
        print(f"Removed {path}")


@cli.command(
    "bench",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def _bench(context: typer.Context, config: ConfigPath = None) -> int:
    """Measure the engine on fixed workloads (octavo bench --help)."""
    from octavo.app.library import resolve_model

    arguments = [part for word in context.args for part in _split_model(word)]
    if not {"-h", "--help"} & set(arguments):
        for place, flag in enumerate(arguments[:-1], start=1):
            if flag in _BENCH_MODELS and not arguments[place].startswith(("shape:", "--")):
                folders = context.obj.settings(config).values.model.folders
                arguments[place] = str(resolve_model(arguments[place], folders=folders))
    from octavo.engine.bench import main as bench

    return bench(arguments)


def _split_model(word: str) -> list[str]:
    flag, equals, value = word.partition("=")
    return [flag, value] if equals and flag in _BENCH_MODELS else [word]


@cli.command("doctor")
def _doctor(context: typer.Context, config: ConfigPath = None, debug: Debug = False) -> int:
    """Check this machine and this installation, and say what to do."""
    from octavo.app.doctor import doctor

    return doctor(config or context.obj.config)


@config_cli.command("path")
def _config_path(context: typer.Context, config: ConfigPath = None) -> None:
    """Print where config.yaml is."""
    from octavo.app import paths

    print((config or context.obj.config or paths.config_file()).expanduser().absolute())


@config_cli.command("show")
def _config_show(context: typer.Context, config: ConfigPath = None, debug: Debug = False) -> None:
    """Print the settings in force and where each comes from."""
    settings = context.obj.settings(config)
    rows = [
        (f"{section}.{name}", _shown(value))
        for section, values in settings.public().items()
        for name, value in values.items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    print(f"# {settings.path}" + ("" if settings.path.exists() else " (not there; defaults are used)"))
    for key, value in rows:
        source = settings.sources[key]
        place = settings.places.get(key, "")
        where = place.removeprefix(f"{settings.path} ") if source == "file" else place
        print(f"{key:<{widths[0]}}  {value:<{widths[1]}}  {source}{f' ({where})' if where else ''}")


@config_cli.command("check")
def _config_check(context: typer.Context, config: ConfigPath = None, debug: Debug = False) -> None:
    """Check config.yaml; exit code 2 if something is wrong."""
    from octavo.app.config import ConfigError, Problem

    named = config or context.obj.config
    if named is not None and not named.exists():
        raise ConfigError((Problem("does not exist.", str(named)),), named)
    settings = context.obj.settings(config)
    for notice in settings.notices:
        print(notice, file=sys.stderr)
    print(
        f"{settings.path} is fine." if settings.path.exists() else f"{settings.path} is not there; defaults are used."
    )


@config_cli.command("schema")
def _config_schema(config: ConfigPath = None) -> None:
    """Print the JSON schema of config.yaml, for editors."""
    from octavo.app.config.document import json_schema_text

    print(json_schema_text(), end="")


@models_cli.command("list")
def _models_list(context: typer.Context, config: ConfigPath = None, debug: Debug = False) -> None:
    """List the models on this disk."""
    from octavo.app.config import format_size
    from octavo.app.library.catalog import list_models
    from octavo.app.library.facts import read_facts

    models = list_models(context.obj.settings(config).values.model.folders)
    if not models:
        print("No models on disk. `octavo models pull starter` fetches a small one.", file=sys.stderr)
    width = max((len(model.id) for model in models), default=0)
    for model in models:
        problem = read_facts(model.path).problem if model.complete else "incomplete: pull it again"
        note = f"  {problem}" if problem else ""
        print(f"{model.id:<{width}}  {format_size(model.size_bytes):>9}  {model.format:<11}  {model.path}{note}")


@models_cli.command("pull")
def _models_pull(context: typer.Context, model: ModelArgument, config: ConfigPath = None, debug: Debug = False) -> None:
    """Fetch a model; prints where it is."""
    from octavo.app.library import resolve_model

    settings = context.obj.settings(config)
    folders, revision = settings.values.model.folders, settings.values.model.revision
    meter = _Meter()
    try:
        path = resolve_model(model, folders=folders, revision=revision, progress=meter)
    finally:
        meter.end()
    print(path)


@models_cli.command("remove")
def _models_remove(
    context: typer.Context,
    model: ModelArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: ConfigPath = None,
    debug: Debug = False,
) -> None:
    """Delete a fetched model from the disk."""
    from octavo.app.config import format_size
    from octavo.app.library.catalog import remove_model

    if not yes and not typer.confirm(f"Delete {model} from this disk?", err=True):
        raise OctavoError("Nothing was deleted.")
    print(f"Removed {model}: {format_size(remove_model(model))} are free again.")


@models_cli.command("inspect")
def _models_inspect(
    context: typer.Context, model: ModelArgument, config: ConfigPath = None, debug: Debug = False
) -> None:
    """Check a model's headers, tensor names and shapes without loading it; exit code 1 naming what is wrong."""
    from octavo.app.library.inspect import report

    print(report(_path_on_disk(context.obj.settings(config), model)))


@models_cli.command("fit")
def _models_fit(
    context: typer.Context,
    model: ModelArgument,
    context_length: Annotated[int | None, typer.Option("--context", min=1, help="Tokens of one chat.")] = None,
    quantization: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="As model.quantization in config.yaml.")
    ] = None,
    device: Device = None,
    config: ConfigPath = None,
    debug: Debug = False,
) -> None:
    """Say whether a model fits into the memory that is free now."""
    from octavo.app.library.fit_report import fit_report

    overrides = {"model.device": device, "model.quantization": quantization}
    settings = context.obj.settings(config, **{key: value for key, value in overrides.items() if value is not None})
    print(fit_report(model, settings.values, context_length))


def _path_on_disk(settings: Settings, model: str) -> Path:
    """The model's files without fetching any."""
    from octavo.app.library import resolve_model

    values = settings.values.model
    return resolve_model(model, folders=values.folders, revision=values.revision, may_fetch=False)


def _shown(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class _Meter:
    """A line of progress on stderr, where somebody looks at it."""

    def __init__(self) -> None:
        self._is_seen, self._last = sys.stderr.isatty(), ""

    def __call__(self, stage: str, done: int, total: int, source: str) -> None:
        line = f"{stage} from {source}: {done / max(total, 1):.0%} of {total / 2**20:.0f} MiB"
        if self._is_seen and line != self._last:
            print(f"\r{line:<78}", end="", file=sys.stderr, flush=True)
            self._last = line

    def end(self) -> None:
        if self._last:
            print(file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """`octavo`: 0 fine, 1 failed, 2 wrong flags or configuration; errors are one line on stderr unless --debug.

    Without `argv` it is the process's own command line, and the process ends here.
    """
    from octavo.app.environment import prepare

    prepare()
    code = _run(list(sys.argv[1:] if argv is None else argv))
    if argv is None:
        _end_process(code)
    return code


def _end_process(code: int) -> None:
    """Everything is closed by now. Taking the interpreter apart as well would free object by object what the system
    frees at once, which takes seconds after torch, and could meet a thread that still compiles."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def _run(arguments: list[str]) -> int:
    try:
        result = cli(args=arguments, prog_name="octavo", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except TyperException as error:
        message = str(getattr(error, "format_message", error.__str__)())
        if message.startswith("Usage:"):  # a group of commands without a command
            print(message, file=sys.stderr)
            return 2
        return _fail(f"{message} `octavo --help` lists the commands, `octavo COMMAND --help` their flags.", 2)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("Stopped.", 1)
    except BrokenPipeError:  # the reader of standard output has gone
        sys.stdout = None  # type: ignore[assignment]
        return 1
    except OctavoError as error:
        if "--debug" in arguments:
            traceback.print_exc()
        return _fail(str(error), 2 if _is_about_settings(error) else 1)
    except Exception as error:
        if "--debug" in arguments:
            traceback.print_exc()
        return _fail(f"An internal error ({type(error).__name__}: {error}). Run it with --debug for the details.", 1)


def _is_about_settings(error: OctavoError) -> bool:
    from octavo.app.config.errors import ConfigError
    from octavo.app.ports import AddressError

    return isinstance(error, (AddressError, ConfigError, DeviceError))


def _fail(message: str, code: int) -> int:
    print(f"octavo: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
