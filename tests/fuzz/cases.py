"""Cases: the damaged files of a kind, kept as small archives that a test runs again."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
"Folder of cases that failed once."
# Files name the folder that they stand in, which differs each time.
_HERE = b"@FOLDER@"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Files in place of the sound ones of a kind."""

    kind: str
    "Name of the kind."
    files: Mapping[str, bytes]
    "Contents by path in the folder of the kind, with a mark in place of the folder."

    @classmethod
    def of(cls, kind: str, files: Mapping[Path, bytes], folder: Path) -> Case:
        """A case of files below ``folder``."""
        here = str(folder).encode()
        return cls(
            kind=kind,
            files={
                str(path.relative_to(folder)): data.replace(here, _HERE) for path, data in sorted(files.items())
            },
        )

    @property
    def name(self) -> str:
        """Name of the case: the kind, and a digest of the files."""
        state = hashlib.blake2b(digest_size=4)
        for path, content in self.files.items():
            state.update(path.encode() + b"\0" + content)
        return f"{self.kind.replace(' ', '-')}-{state.hexdigest()}"

    def apply(self, folder: Path) -> None:
        """Write the files below ``folder``."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.replace(_HERE, str(folder).encode()))

    def save(self, corpus: Path) -> Path:
        """Write the case into a corpus."""
        corpus.mkdir(parents=True, exist_ok=True)
        path = corpus / f"{self.name}.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.comment = self.kind.encode()
            for name, content in self.files.items():
                archive.writestr(zipfile.ZipInfo(name), content, compress_type=zipfile.ZIP_DEFLATED)
        return path

    @classmethod
    def load(cls, path: Path) -> Case:
        """Read a case of a corpus."""
        with zipfile.ZipFile(path) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
            return cls(kind=archive.comment.decode(), files=files)
