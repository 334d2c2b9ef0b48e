"""Made-up posts with labels, and the traffic mix: what the classifiers learn from and what the demo feeds in.

Everything follows from a seed. Posts are composed of phrases, so that nothing is downloaded, with enough noise that a
classifier has something to learn.
"""

from __future__ import annotations

import random

TOPICS = ("the match last night", "the new phone", "sourdough", "the election", "my cat", "the train strike", "jazz",
          "the heatwave", "that film", "my first marathon", "the tide tables", "house prices")  # fmt: skip
OPENINGS = ("honestly,", "so", "hot take:", "not gonna lie,", "update:", "reminder that", "today I learned that", "")
FEELINGS = ("is better than anyone admits", "has been all I think about", "deserves a longer answer",
            "was a mistake and I regret nothing", "made my week", "is why I am late again")  # fmt: skip
PHRASES = {
    "spam": ("check my profile for free crypto", "DM me to earn $500 a day", "link in my bio",
             "buy followers now", "win a free iphone, just register here", "hot deals 90% off today only"),
    "abuse": ("you are all worthless idiots", "nobody would miss you", "shut up and get lost, trash",
              "people like you should be silenced", "I hope you lose everything"),
    "violence": ("I will hurt him when I see him", "bring weapons, it starts at nine", "they deserve to be beaten",
                 "burn their place down tonight"),
    "adult": ("explicit pictures for subscribers only", "watch me undressed, link below", "nsfw clips sold here"),
    "scam": ("send your seed phrase to verify the wallet", "your account is locked, enter your password here",
             "double your coins, transfer first"),
    "banger": ("the funniest thread you will read today", "nobody talks about this and everybody should",
               "I cannot stop laughing at how true this is", "this one sentence changed how I work"),
    "thoughtful": ("the point about costs is fair, but the data for smaller towns says otherwise",
                   "I tried both for a year; here is what surprised me", "source: the yearly report, page twelve",
                   "that explains the delay, thank you for writing it up"),
    "shallow": ("lol", "first", "this", "ratio", "ok", "who asked", "so true"),
}  # fmt: skip
SPICE = ("", "", " 😂", " !!", " #trending", " (thread)", " @you", " https://example.com/x")


def sentence(chance: random.Random) -> str:
    """A harmless post."""
    return f"{chance.choice(OPENINGS)} {chance.choice(TOPICS)} {chance.choice(FEELINGS)}".strip()


def text_of(label: str, chance: random.Random) -> str:
    """A post of this kind; any label that is no kind gives a harmless one."""
    phrase = chance.choice(PHRASES[label]) if label in PHRASES else sentence(chance)
    around = sentence(chance) if chance.random() < 0.4 else ""
    parts = [phrase, around] if chance.random() < 0.5 else [around, phrase]
    return " ".join(part for part in parts if part) + chance.choice(SPICE)


def labelled(label: str, count: int, seed: int) -> list[tuple[str, bool]]:
    """Texts and whether they are of this kind: half are, the others are of all other kinds."""
    chance = random.Random(f"{label}/{seed}")
    others = [each for each in (*PHRASES, "plain", "plain", "plain") if each != label]
    return [
        (text_of(label, chance), True) if number % 2 else (text_of(chance.choice(others), chance), False)
        for number in range(count)
    ]
