"""Banks and classifiers on the Hugging Face Hub: one safetensors file with a model card, in a repository each.

    push_to_hub(bank, "me/birds")          from_hub("me/birds")

Files are read by `BaseBank.load` and `load_classifier`: no pickle, no code.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from fewcal._utils.atomic import atomic_path
from fewcal._utils.safetensors_io import read_header
from fewcal._utils.text import one_line
from fewcal._utils.types import StrPath
from fewcal.apply.build_bank import bank_facts
from fewcal.bank import BaseBank
from fewcal.errors import FewcalError, InputError
from fewcal.estimators import load_classifier
from fewcal.estimators.base import TaskClassifier
from fewcal.estimators.saved import classifier_facts

FILE, CARD = "model.safetensors", "README.md"
# A later push renews what stands between these lines, and leaves the rest of the card as its owner wrote it.
BEGIN, END = "<!-- fewcal: facts -->", "<!-- fewcal: end -->"


def push_to_hub(
    model: BaseBank | TaskClassifier | StrPath, repo: str, *, private: bool = True, token: str | None = None
) -> str:
    """Upload a bank or a fitted classifier with its model card, and return the address of the repository.

    Parameters
    ----------
    model : BaseBank, classifier or path of a saved one
        A classifier's file holds its examples as features, and a bank's its base rows.
    repo : str
        "user/name"; it is made if it does not exist.
    private : bool, default=True
        Whether a new repository is seen by its owner alone.
    token : str or None
        By default that of `hf auth login`, or HF_TOKEN in the environment.
    """
    hub = _hub()
    with TemporaryDirectory() as folder:
        file = Path(model) if isinstance(model, str | Path) else None
        if file is None:
            assert isinstance(model, BaseBank | TaskClassifier)
            file = model.save(Path(folder) / FILE)
        facts = _facts(file)
        with _one_line_errors(f"{repo} cannot be written"):
            api = hub.HfApi(token=token, library_name="fewcal")
            address = api.create_repo(repo, private=private, exist_ok=True)
            text = model_card(repo, facts, _own_card(api, repo))
            add = hub.CommitOperationAdd
            files = [add(CARD, text.encode()), add(FILE, str(file))]
            api.create_commit(repo, files, commit_message=f"Upload a {facts['kind']} with fewcal")
    return str(address)


def from_hub(
    repo: str, *, revision: str | None = None, token: str | None = None, device: str | torch.device | None = None
) -> BaseBank | TaskClassifier:
    """Load a bank or a classifier from the Hub, by way of the cache of `huggingface_hub`.

    Parameters
    ----------
    repo : str
        "user/name".
    revision : str or None
        A branch, a tag or a commit.
    token : str or None
        As for `push_to_hub`.
    device : str, torch.device or None
    """
    file = _downloaded(repo, revision, token)
    return BaseBank.load(file, device=device) if _is_bank(file) else load_classifier(file, device)


def pull_from_hub(repo: str, target: StrPath, *, revision: str | None = None, token: str | None = None) -> Path:
    """Write the bank or classifier of a repository to a file, which appears when it is complete and was read."""
    file = _downloaded(repo, revision, token)
    _facts(file)
    with atomic_path(target) as temporary:
        shutil.copyfile(file, temporary)
    return Path(target)


def model_card(repo: str, facts: Mapping[str, Any], own: str | None = None) -> str:
    """The model card of a repository: that of its owner, `own`, with renewed facts, or a new one."""
    rows = [f"| {key.replace('_', ' ')} | {_cell(value)} |" for key, value in facts.items() if value is not None]
    table = "\n".join([BEGIN, "| | |", "|---|---|", *rows, END])
    if own is not None and BEGIN in own and END in own:
        return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: table, own, count=1, flags=re.DOTALL)
    if own is not None:
        return f"{own.rstrip()}\n\n{table}\n"
    kind, extractor = facts["kind"], facts.get("extractor") or facts.get("source") or "one and the same extractor"
    use = {
        "bank": "classifier = FewShotClassifier(model).fit(X, y)  # a few rows of each new class",
        "classifier": "model.predict_proba(X)",
    }
    return f"""---
library_name: fewcal
tags: [few-shot-learning, embeddings, fewcal]
---

# {repo.rpartition("/")[2]}

A {kind} for few-shot classification, made with fewcal. Its rows are features of {extractor}.

```python
from fewcal import FewShotClassifier, from_hub

model = from_hub({json.dumps(repo)})
{use[kind]}
```

{table}
"""


def _cell(value: object) -> str:
    if isinstance(value, Mapping):
        value = ", ".join(f"{k} ({v})" for k, v in value.items())
    return one_line(value, 400).replace("|", "\\|").replace("<", "&lt;")


def _facts(file: Path) -> dict[str, Any]:
    """What the card tells of a file; it is read whole, so that a damaged one is refused."""
    if not file.is_file():
        raise InputError(f"no bank or classifier at {file}; save one first")
    facts = bank_facts(BaseBank.load(file).check()) if (bank := _is_bank(file)) else classifier_facts(file)
    kind = {"kind": "bank" if bank else "classifier"}
    return kind | {k: v for k, v in facts.items() if k not in ("file", "bytes")}


def _is_bank(file: Path) -> bool:
    header = read_header(file)
    return isinstance(header, dict) and header.get("format") == "fewcal-bank"


def _downloaded(repo: str, revision: str | None, token: str | None) -> Path:
    hub = _hub()
    with _one_line_errors(f"{repo} cannot be read"):
        return Path(hub.HfApi(token=token, library_name="fewcal").hf_hub_download(repo, FILE, revision=revision))


def _own_card(api: Any, repo: str) -> str | None:
    try:
        return Path(api.hf_hub_download(repo, CARD)).read_text(encoding="utf-8")
    except _hub().errors.RemoteEntryNotFoundError:
        return None


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise InputError("the Hub needs the package huggingface_hub: pip install 'fewcal[hub]'") from error
    return huggingface_hub


@contextmanager
def _one_line_errors(what: str) -> Iterator[None]:
    """Errors of the Hub, the network and the name of a repository as one line."""
    try:
        yield
    except FewcalError:
        raise
    except Exception as error:  # of huggingface_hub, of its HTTP library, of the disk
        raise InputError(f"{what}; check the name, the network and `hf auth whoami` ({one_line(error)})") from error
