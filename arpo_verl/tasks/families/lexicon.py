"""Generated tasks show and name these words: short, common, unlike each other, and none part of another."""

from __future__ import annotations

WORDS: tuple[str, ...] = tuple(
    """
    Acorn Amber Anchor Apple Badge Bamboo Banana Barrel Basket Beach Birch Blue Bottle Bread Bridge Bronze Brush Butter
    Cactus Camel Candle Canyon Carrot Castle Cedar Cherry Circle Cloud Clover Cobalt Coffee Copper Coral Cotton Crimson
    Desert Diamond Dolphin Donkey Dragon Drum Eagle Echo Ember Engine Falcon Feather Fern Fig Flute Forest Fox Garden
    Garlic Ginger Globe Gold Grape Green Guitar Hammer Harbor Hazel Honey Ivory Jacket Jade Jungle Kettle Kite Ladder
    Lagoon Lamp Lemon Lily Lime Lion Magnet Mango Marble Meadow Melon Mint Mirror Moon Needle Nickel Oak Ocean Olive
    Onion Orange Otter Oyster Panda Paper Peach Pear Pepper Piano Pillow Plum Pocket Purple Quartz Quilt Rabbit Radish
    River Rocket Ruby Saddle Salmon Silver Spoon Square Tiger Tulip Turtle Velvet Violet Walnut Willow Yellow Zebra
    """.split()
)
"""All words, as tasks show them: capitalised, of 3 to 7 letters."""

HELD_OUT_WORDS: tuple[str, ...] = WORDS[2::5]
"""Words that no training or validation task has; the tasks of the split `held_out_words` have only these."""

TRAINING_WORDS: tuple[str, ...] = tuple(word for word in WORDS if word not in HELD_OUT_WORDS)
