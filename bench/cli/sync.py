"""`bench sync`: upload the records that the store has not; again and again, it adds nothing twice."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--tracking-uri", metavar="URI", help="An MLflow server; by default mlflow.db beside the run.")
@click.option(
    "--include-pictures",
    is_flag=True,
    help="Upload private data's pictures, too, also those withheld.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def command(run: Path | None, tracking_uri: str | None, include_pictures: bool, as_json: bool) -> None:
    """Upload the records of RUN (by default the newest below runs/) that the store has not, and its rows.

    Exit code 1 where some could not be uploaded: they are kept, and the next sync tries again.
    """
    from bench.errors import RecordError
    from bench.tracking import row_upload, store, upload

    run = store.checked_run(run)
    uri = store.checked_uri(run, tracking_uri)
    live = sys.stderr.isatty() and not as_json

    def progress(state: store.Uploaded) -> None:
        if live:
            click.echo(f"\r{state.left} left \x1b[K", nl=False, err=True)

    done = upload.upload(run, uri, include_pictures=include_pictures, progress=progress)
    cut_off = False
    if not done.left:
        try:
            target = upload.open_target(run, uri, include_pictures=include_pictures)
            done = replace(done, rows=row_upload.send(target, run))
        except RecordError as error:
            done = replace(done, reason=done.reason or str(error))
        except upload.StoreError as failure:
            done, cut_off = replace(done, reason=str(failure)), True
    if live:
        click.echo("\r\x1b[K", nl=False, err=True)
    if as_json:
        click.echo(json.dumps({"run": str(run), "uri": store.shown(uri), **asdict(done)}))
    else:
        click.echo(
            f"{run} → {store.shown(uri)}: {done.count} uploaded, {done.skipped} there already, "
            f"{done.failed} failed, {done.left} left; {done.rows} rows of the board written"
        )
        if done.reason:
            click.echo(f"bench: {done.reason}", err=True)
    if done.failed or done.left or cut_off:
        sys.exit(1)
