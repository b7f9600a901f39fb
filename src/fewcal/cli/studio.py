"""`fewcal studio`: a page in the browser on which a few labels become a classifier."""

from pathlib import Path
from typing import Annotated

import typer

from fewcal.apply.checks import checked_project_folder
from fewcal.cli.options import Device, Preset, Quiet, existing


def studio(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Folder with pictures or texts; labels are kept in it. Made where missing.",
            callback=checked_project_folder,
        ),
    ] = None,
    extractor: Annotated[
        str | None,
        typer.Option("--extractor", "-e", help="As of `fewcal extract`; efficientnet-lite0 or minilm by default."),
    ] = None,
    bank: Annotated[
        Path | None, typer.Option(help="Bank of base classes from the same extractor.", callback=existing)
    ] = None,
    base_pictures: Annotated[
        Path | None,
        typer.Option(help="Folder with a folder of pictures for each base class, to look at.", callback=existing),
    ] = None,
    preset: Preset = None,
    demo: Annotated[bool, typer.Option("--demo", help="Letters of unseen scripts to try it on.")] = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 0,
    behind_proxy: Annotated[
        str | None,
        typer.Option(
            help="The page's address behind a proxy (JupyterHub, Codespaces): https://hub.example/user/me/proxy/8000.",
            metavar="ADDRESS",
        ),
    ] = None,
    rescue: Annotated[
        bool, typer.Option("--rescue", help="Save what can be read of a damaged project, and leave.")
    ] = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
    device: Device = "cpu",
    quiet: Quiet = False,
) -> None:
    """Label pictures or texts in the browser. Answers, doubt, what to label next, exports."""
    from tempfile import TemporaryDirectory

    if rescue:
        from fewcal.apply.studio.rescue import rescue as save

        print(save(folder if folder is not None else Path()))
        return
    from fewcal.apply.studio.server import serve_studio
    from fewcal.apply.studio.start import new_folder_note, project_settings

    note = None if folder is None or demo else new_folder_note(folder)

    def opened(link: str) -> None:
        import webbrowser

        print(f"fewcal studio: {link}", flush=True)
        if not quiet and note:
            print(note, flush=True)
        if not quiet:
            print("the link holds the key to this project; Ctrl-C stops", flush=True)
        if demo and not quiet:
            print("six letters in 20 drawings each: name a class for every letter and give it an example", flush=True)
        if browser:
            webbrowser.open(link)

    with TemporaryDirectory(prefix="fewcal-studio-") as temporary:
        if demo and not quiet:
            typer.echo("drawing letters …", err=True)
        place = folder if folder is not None else Path(temporary) / "letters" if demo else Path()
        settings = project_settings(
            place, demo=demo, extractor=extractor, bank=bank, base_pictures=base_pictures, preset=preset, device=device
        )
        serve_studio(place, settings, host=host, port=port, behind_proxy=behind_proxy, opened=opened)
