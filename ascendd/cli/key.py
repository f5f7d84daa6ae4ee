"""`ascendd key add|list|revoke`: the API keys of a credentials file, of which only hashes are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

_File = Annotated[Path, typer.Option("--file", "-f", help="The credentials file (listen.api_key_file).")]


def register(app: typer.Typer) -> None:
    """Add the verb and its parts to the command line."""
    group = typer.Typer(help="Add, list and revoke API keys; a running instance reads them on reload.")
    app.add_typer(group, name="key", no_args_is_help=True)

    @group.command()
    def add(
        name: Annotated[str, typer.Argument(help="Who the key is for; stands in logs in place of the key.")],
        file: _File,
        scopes: Annotated[str, typer.Option("--scopes", help="Of infer, metrics and admin, with commas.")] = "infer",
        max_concurrency: Annotated[int | None, typer.Option(min=1, help="Requests at a time.")] = None,
        tokens_per_minute: Annotated[int | None, typer.Option(min=1, help="Tokens, prompts included.")] = None,
    ) -> None:
        """Make a key and print it; it is shown this once."""
        from ascendd.config.credentials import Credential, check_name, check_scopes, digest_of, new_key
        from ascendd.config.key_file import read_credentials, rewrite
        from ascendd.errors import ConfigError

        try:
            check_name(name)
            allowed = check_scopes(scopes)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        if text.strip() and any(known.name == name for known in read_credentials(file)):
            raise ConfigError(f"{file} has a key named {name}", remedy="Revoke it first, or choose another name.")
        key = new_key()
        made = Credential(name, digest_of(key), allowed, max_concurrency, tokens_per_minute)
        rewrite(file, f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{made.line()}\n")
        print(key)

    @group.command("list")
    def list_keys(file: _File, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
        """Show names, scopes and limits; no key can be shown."""
        from ascendd.config.key_file import read_credentials

        rows = [
            {
                "name": item.name,
                "scopes": sorted(item.scopes),
                "max_concurrency": item.max_concurrency,
                "tokens_per_minute": item.tokens_per_minute,
            }
            for item in read_credentials(file)
        ]
        if as_json:
            print(json.dumps(rows, indent=2))
            return
        for row in rows:
            limits = [f"{key} {row[key]}" for key in ("max_concurrency", "tokens_per_minute") if row[key] is not None]
            print(f"{row['name']:24} {','.join(sorted(row['scopes'])):12} {', '.join(limits) or 'no limits'}")  # type: ignore[arg-type]

    @group.command()
    def revoke(name: Annotated[str, typer.Argument(help="The name of the key.")], file: _File) -> None:
        """Take a key out; it is refused from the next reload on."""
        from ascendd.config.credentials import parse_line
        from ascendd.config.key_file import read_credentials, rewrite
        from ascendd.errors import ConfigError

        names = [item.name for item in read_credentials(file)]
        if name not in names:
            raise ConfigError(f"{file} has no key named {name[:64]}", remedy=f"It has: {', '.join(names)}.")
        if len(names) == 1:
            raise ConfigError(
                f"{name} is the last key of {file}, and a file without keys stops the instance",
                remedy="Add another key first, or remove listen.api_key_file to serve without keys.",
            )
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [
            line
            for number, line in enumerate(lines, 1)
            if (found := parse_line(line, number)) is None or found.name != name
        ]
        rewrite(file, "".join(kept))
