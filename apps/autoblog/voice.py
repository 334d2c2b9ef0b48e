"""Reads texts aloud with a program: `espeak-ng` if it is installed, or the one that AUTOBLOG_VOICE names.

    AUTOBLOG_VOICE="piper --model en.onnx --output_file {file}"

The program gets the text on its standard input, and writes a WAV file to {file}.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

ESPEAK = "espeak-ng -s 150 --stdin -w {file}"
PATIENCE = 300.0


def find_voice() -> str | None:
    """The command that reads aloud; None if no program does."""
    given = os.environ.get("AUTOBLOG_VOICE")
    return given or (ESPEAK if shutil.which("espeak-ng") else None)


def read_aloud(text: str, voice: str) -> bytes:
    """The sound of a text, as a WAV file."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "spoken.wav"
        command = [part.replace("{file}", str(target)) for part in shlex.split(voice)]
        done = subprocess.run(command, input=text.encode(), capture_output=True, timeout=PATIENCE)
        if done.returncode:
            raise RuntimeError(
                f"{command[0]} ended with {done.returncode}: {done.stderr.decode(errors='replace')[-300:]}"
            )
        sound = target.read_bytes()
    if not sound.startswith(b"RIFF"):
        raise RuntimeError(f"{command[0]} wrote no WAV file")
    return sound
