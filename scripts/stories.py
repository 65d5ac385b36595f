"""Simple English stories, written from a key: the training text of the tiny model.

`primer` gives plainer text still, for the first steps of the training.

A story has a hero, a place, one small trouble out of sixteen, somebody who helps, an end and a closing line.
`story(key, index)` is a pure function of its arguments: the generator below (SplitMix64) is part of the
format, so the same key gives the same text with any version of Python.

    python3 stories.py --key 1 --count 5
"""

import argparse

MASK = (1 << 64) - 1


class Rng:
    """SplitMix64 (Steele, Lea, Flood 2014), seeded from a key and a story number."""

    def __init__(self, key, index):
        self.state = (key * 0x9E3779B97F4A7C15 + index * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & MASK
        self.next()

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, n):
        return (self.next() * n) >> 64

    def pick(self, items):
        return items[self.below(len(items))]

    def chance(self, percent):
        return self.below(100) < percent


GIRLS = "Lily Mia Anna Emma Lucy Ella Rosie Zoe Sara Nora Molly Ruby Ivy Clara Daisy".split()
BOYS = "Tom Ben Max Sam Jack Leo Tim Finn Noah Oscar Theo Henry Hugo Charlie Will".split()
ANIMALS = "rabbit fox mouse bear squirrel duck frog cat dog hedgehog owl pig goat turtle lamb".split()
PET_NAMES = "Pip Dot Bobo Mimi Toto Nibbles Patch Coco Hazel Bramble Waffles Button".split()
TRAITS = "little kind brave shy happy curious clever quiet cheerful careful".split()
COLORS = "red blue green yellow white golden purple brown".split()
TOYS = "ball kite hat drum scarf boat book bell doll lamp basket key spoon ribbon".split()
FOODS = "apple cake pie cookie pear carrot plum bun".split()
FLOWERS = "rose tulip sunflower daisy violet".split()
PLACES = [
    ("in a small house by the sea", "beach"),
    ("near a big green forest", "forest"),
    ("in a cozy village", "village"),
    ("on a quiet farm", "farm"),
    ("by a long blue river", "river"),
    ("at the foot of a tall hill", "hill"),
    ("next to a sunny meadow", "meadow"),
    ("in a town with a pretty park", "park"),
    ("in a hut beside a lake", "lake"),
    ("close to an old garden", "garden"),
]
WEATHER = [
    "The sun was shining and the sky was blue.",
    "It was a warm and bright morning.",
    "The wind was soft and the birds were singing.",
    "It was a cool day with a few white clouds.",
    "The air smelled of flowers.",
    "There was a little snow on the ground.",
    "The leaves were red and gold.",
]
FAMILY = ["mother", "father", "grandmother", "grandfather", "aunt", "uncle"]
MORALS = [
    "From that day on, {N} always remembered to {LESSON}.",
    "{N} learned that it is good to {LESSON}.",
    "That night, {N} fell asleep with a big smile.",
    "And they all lived happily ever after.",
    "It was the best day of all.",
    "{N} was very {GLAD}, and so were all {POS} friends.",
    "After that, {N} and {F} were the best of friends.",
    "{N} could not wait to tell {POS} {FAM} all about it.",
]


def a(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


class Being:
    """Somebody in a story: a name, what kind, and the pronouns."""

    def __init__(self, rng, taken=()):
        self.animal = None
        if rng.chance(55):
            self.girl = rng.chance(50)
            self.name = rng.pick([n for n in (GIRLS if self.girl else BOYS) if n not in taken])
            self.kind = "girl" if self.girl else "boy"
        else:
            self.girl = rng.chance(50)
            self.name = rng.pick([n for n in PET_NAMES if n not in taken])
            self.kind = self.animal = rng.pick(ANIMALS)
        self.they, self.them, self.pos = ("she", "her", "her") if self.girl else ("he", "him", "his")


# Each plot: the lesson, then beats; a beat is a list of ways to say it. Slots: N hero, F friend, K friend's kind,
# OBJ thing, C colour, FOOD, FLOWER, P place word, FAM relative; HE HIM POS (hero), FHE FHIM FPOS (friend);
# a capital first letter in the slot's name with "^" in front writes it with a capital.
PLOTS = [
    ("look after things", [
        ["One day, {N} could not find {POS} {C} {OBJ}.", "One morning, {POS} {C} {OBJ} was gone."],
        ["{^HE} looked under the bed and behind the door, but it was not there.",
         "{^HE} looked in the {P}, but {HE} only found {A_STONE}.",
         "{^HE} looked everywhere, and {HE} began to cry."],
        ["Then {HE} met {F}, {A_K}. \"Why are you sad?\" asked {F}. \"I lost my {OBJ},\" said {N}."],
        ["\"Let us look together,\" said {F}.", "\"Do not worry. I will help you,\" said {F}."],
        ["They walked slowly and looked at every spot. At last, {F} saw something {C} under a bush.",
         "They looked and looked. Then {F} saw something {C} in the tall grass."],
        ["It was the {OBJ}! {N} gave {F} a big hug. \"Thank you,\" {HE} said.",
         "\"My {OBJ}!\" said {N}. {^HE} jumped up and down and thanked {F}."],
    ]),
    ("ask for help", [
        ["{N} had a new {C} kite. {^HE} ran to the {P} to fly it.",
         "{N} wanted to fly {POS} {C} kite at the {P}."],
        ["But a strong wind came, and the kite got stuck in a tall tree.",
         "The kite went up and up. Then it got stuck at the top of a tree."],
        ["{N} jumped, but {HE} could not reach it.", "{N} tried to climb the tree, but it was too high.",
         "{N} pulled the string, but the kite did not move."],
        ["{F}, {A_K}, came by. \"I can help you,\" said {F}.",
         "Just then, {F} came along. {F} was {A_K}. \"Can you help me, please?\" asked {N}."],
        ["{F} found a long stick and pushed the kite. It came down softly.",
         "{F} climbed up very carefully and set the kite free."],
        ["\"Thank you, {F}!\" said {N}. They flew the kite together until the sun went down.",
         "{N} was so happy. \"Now it is your turn,\" {HE} said, and {HE} gave {F} the string."],
    ]),
    ("share", [
        ["One day, {N} found {A_FOOD} on the table. It smelled very good.",
         "{POS^} {FAM} gave {N} {A_FOOD} for lunch."],
        ["{N} took it to the {P} to eat it alone.", "{^HE} went to the {P} and sat down under a tree."],
        ["There {HE} saw {F}, {A_K}. {F} looked tired and hungry.",
         "{F}, {A_K}, was sitting there too. \"I am so hungry,\" said {F}."],
        ["{N} looked at the {FOOD}. {^HE} wanted to eat it all. But {HE} felt sorry for {F}.",
         "At first, {N} hid the {FOOD} behind {POS} back. Then {HE} felt bad."],
        ["{^HE} cut the {FOOD} in two and gave {F} the big half.",
         "\"Here, you can have half of my {FOOD},\" said {N}."],
        ["They ate together and laughed. The {FOOD} tasted even better.",
         "\"You are very kind,\" said {F}. They ate and talked all day."],
    ]),
    ("be brave", [
        ["{N} was afraid of the dark.", "When night came, {N} did not like to sleep alone."],
        ["One night, {HE} heard a strange sound. \"Tap, tap, tap.\"",
         "One night, there was a noise outside the window. \"Who is there?\" {HE} asked."],
        ["{N} hid under the blanket. {POS^} heart was beating fast.", "{N} wanted to run away."],
        ["But then {HE} took a deep breath, took {POS} lamp and opened the door.",
         "But {HE} said, \"I can be brave.\" {^HE} took a lamp and went outside."],
        ["It was only {F}, {A_K}. \"I am sorry,\" said {F}. \"I am cold, and I lost my way.\"",
         "There stood {F}, {A_K}. \"Can I come in? It is raining,\" said {F}."],
        ["{N} laughed and let {F} in. They drank warm milk by the fire.",
         "{N} gave {F} a warm blanket. The night was not so dark with a friend."],
    ]),
    ("be patient", [
        ["In spring, {N} got a tiny seed from {POS} {FAM}.", "One day, {N} found a tiny seed in the {P}."],
        ["{^HE} put it in the ground and gave it water every day.",
         "{^HE} made a hole in the ground, put the seed in and gave it some water."],
        ["But nothing happened. \"Why does it not grow?\" asked {N}.",
         "{N} waited and waited, but there was nothing to see. {^HE} was sad."],
        ["{F}, {A_K}, smiled. \"You must wait a little,\" said {F}. \"Good things take time.\"",
         "\"Do not give up,\" said {F}, {A_K} who lived near by. \"It needs sun and time.\""],
        ["So {N} waited. Then one morning, there was a small green leaf.",
         "The rain came, and then the sun. One day, {HE} saw something green."],
        ["Soon it was a tall {C} {FLOWER}. {N} danced around it.",
         "It grew and grew into a lovely {C} {FLOWER}. Everyone came to see it."],
    ]),
    ("tell the truth", [
        ["One day, {N} was playing with a ball in the house.",
         "{N} liked to run in the kitchen, but {POS} {FAM} said, \"Please do not run.\""],
        ["Crash! {^HE} broke the {C} cup of {POS} {FAM}.",
         "Oh no! The {C} cup fell on the floor and broke."],
        ["{N} was scared. {^HE} wanted to hide it under the rug.",
         "{N} did not know what to do. {^HE} hid behind a chair."],
        ["{POS^} friend {F}, {A_K}, said, \"You should tell the truth.\"",
         "\"You should say that you are sorry,\" said {POS} friend {F}, {A_K}."],
        ["So {N} went to {POS} {FAM} and said, \"I broke your cup. I am sorry.\"",
         "{N} took the pieces to {POS} {FAM}. \"It was me. I am very sorry,\" {HE} said."],
        ["{POS^} {FAM} was not angry. \"Thank you for telling me,\" said {POS} {FAM}. They fixed the cup together.",
         "{POS^} {FAM} gave {HIM} a hug. \"A cup is only a cup,\" said {POS} {FAM}."],
    ]),
    ("stay close to home", [
        ["One day, {N} went for a walk to look for berries.", "{N} followed {A_C} butterfly far away from home."],
        ["{^HE} walked and walked. Soon {HE} did not know the way back.",
         "When {HE} looked around, all the trees looked the same. {^HE} was lost!"],
        ["\"Help!\" {HE} called, but nobody came.", "It was getting dark. {N} sat on a stone and cried."],
        ["Then {F}, {A_K}, came out of the trees. \"Are you lost?\" asked {F}.",
         "{A_K^} named {F} heard {HIM}. \"Where do you live?\" asked {F}."],
        ["\"I live by the {P},\" said {N}. \"I know the {P},\" said {F}. \"Come with me.\"",
         "\"My home is near the {P},\" said {N}. {F} took {HIM} by the hand and showed {HIM} the way."],
        ["Soon {N} saw the light of {POS} house. {POS^} {FAM} ran out to meet {HIM}.",
         "They came home just in time for dinner. {POS^} {FAM} gave them both hot soup."],
    ]),
    ("be yourself", [
        ["{N} loved to sing, but {HE} was too shy to sing for others.",
         "{N} had a lovely voice, but {HE} only sang when {HE} was alone."],
        ["One day, there was a big party at the {P}.", "Soon there would be a show at the {P}."],
        ["\"What if they laugh at me?\" thought {N}.", "\"I cannot do it,\" said {N}. {^HE} was afraid."],
        ["\"I will sing with you,\" said {F}, {A_K}.",
         "{F}, {A_K}, took {POS} hand. \"Just look at me and sing,\" said {F}."],
        ["{N} closed {POS} eyes and began to sing. It was quiet at first, and then loud and clear.",
         "{N} stood up and sang a song about the stars. Nobody laughed."],
        ["When the song was over, everyone clapped. {N} was proud.",
         "Everyone clapped and asked for one more song."],
    ]),
    ("work together", [
        ["{N} wanted to build a little house in a tree.", "{N} wanted to build a bridge over the stream.",
         "{N} wanted to build a big castle of sand."],
        ["{^HE} worked all day, but it fell down.", "{^HE} tried once, and {HE} tried again, but it always fell down."],
        ["\"It is too hard,\" said {N}. {^HE} kicked a stone and sat down.", "{N} was tired and wanted to stop."],
        ["{F}, {A_K}, came to see. \"You build one side, and I will build the other,\" said {F}.",
         "\"Can I help?\" asked {F}, {A_K}. \"Two are better than one.\""],
        ["They worked together. {N} held it and {F} made it strong.",
         "{N} carried the big ones, and {F} carried the small ones. They sang as they worked."],
        ["When they were done, it was perfect. \"We did it!\" they said.",
         "In the evening it was ready, and it did not fall. They sat there and looked at the moon."],
    ]),
    ("be kind to everyone", [
        ["One day, {N} saw {F}, {A_K}, sitting alone at the {P}.",
         "A new friend came to the {P}. It was {F}, {A_K}."],
        ["Nobody wanted to play with {F}. The others laughed at {FPOS} {C} {OBJ}.",
         "{F} did not know anybody. {^FHE} held {FPOS} {C} {OBJ} and looked at the ground."],
        ["{N} felt sad to see that.", "{N} thought, \"I would not like to be alone.\""],
        ["{^HE} walked to {F} and said, \"Hello! I like your {OBJ}. Do you want to play with me?\"",
         "\"Hi, I am {N},\" {HE} said. \"Your {OBJ} is so pretty. Let us play.\""],
        ["{F} smiled. They played hide and seek until dinner.",
         "{F} was so happy. They ran and jumped and laughed all day."],
        ["The next day, all the others wanted to play with them too.",
         "Soon the others came and said sorry, and they all played together."],
    ]),
    ("never give up", [
        ["There was a big race at the {P}. {N} wanted to win.", "{N} wanted to run in the great race at the {P}."],
        ["But {N} was slow, and {F}, {A_K}, was very fast.", "But {F}, {A_K}, was always faster."],
        ["\"You will never win,\" the others said. But {N} ran every day, in the rain and in the sun.",
         "So {N} got up early every morning and ran up the hill."],
        ["On the day of the race, {F} was first. Then {F} fell and hurt {FPOS} foot.",
         "The race began. They ran side by side. Then {F} fell over a stone."],
        ["{N} stopped. {^HE} helped {F} to stand up, and they walked to the end together.",
         "{N} could win now. But {HE} went back and helped {F}. They came in last, hand in hand."],
        ["Everyone cheered, and both of them got a {C} ribbon.",
         "\"You are the real winner,\" said {F}, and everyone cheered."],
    ]),
    ("be gentle", [
        ["One day, {N} heard a tiny voice. A small bird was on the ground.",
         "At the {P}, {N} found a little bird that could not fly."],
        ["\"Oh, you poor thing,\" said {N}. The bird had a hurt wing.",
         "The bird was cold, and its wing was hurt."],
        ["{N} did not know what to do, so {HE} asked {F}, {A_K}.",
         "{N} ran to {F}, {A_K} who knew all about birds."],
        ["\"We will make a warm nest in a box,\" said {F}.", "\"It must rest and eat,\" said {F}."],
        ["They gave it bread and water every day, and {N} sang to it.",
         "{N} kept the bird warm in {POS} {C} hat, and {F} found seeds for it."],
        ["After a week, the bird could fly again. It sang a song for them from the top of a tree.",
         "One morning, the bird flew up into the sky. \"Goodbye, little bird!\" they called."],
    ]),
    ("listen to others", [
        ["One rainy day, {N} wanted to bake {A_FOOD_BAKED}.", "It was the birthday of {POS} {FAM}. {N} wanted to bake {A_FOOD_BAKED}."],
        ["{^HE} put in too much salt, and it tasted terrible.", "But {HE} forgot the sugar, and it did not taste good at all."],
        ["\"Yuck!\" said {N}. {^HE} almost cried.", "\"What did I do wrong?\" asked {N}."],
        ["{POS^} friend {F}, {A_K}, read the book. \"First the flour, then the milk, then the sugar,\" said {F}.",
         "{F}, {A_K}, came to help. \"Listen, I will tell you how,\" said {F}."],
        ["This time, {N} listened to every word. Soon the house smelled sweet.",
         "They mixed and stirred, and {N} did it just as {F} said."],
        ["It was the best {FOOD_BAKED} ever. They ate it with {POS} {FAM}.",
         "{POS^} {FAM} took a bite and smiled. \"Wonderful!\" said {POS} {FAM}."],
    ]),
    ("be careful", [
        ["{N} had a small {C} boat. {^HE} put it on the water.", "One day, {N} made a little {C} boat out of wood."],
        ["The boat went faster and faster, away from {HIM}.", "The water took the boat far away."],
        ["{N} ran along the water, but {HE} could not catch it.", "\"Come back!\" called {N}, but the boat did not stop."],
        ["{F}, {A_K}, was fishing there. \"I see it!\" said {F}.",
         "Luckily, {F}, {A_K}, saw it too. \"Wait here,\" said {F}."],
        ["{F} took a long net and got the boat out of the water.", "{F} jumped into the water and swam to the boat."],
        ["{N} tied a string to the boat, so that it could never get lost again.",
         "\"Thank you!\" said {N}. {^HE} named the boat {F}."],
    ]),
    ("say sorry", [
        ["{N} and {F}, {A_K}, were good friends. They both liked the {C} {OBJ}.",
         "{N} was playing with {F}, {A_K}. They had only one {C} {OBJ}."],
        ["\"It is mine!\" said {N}. \"No, it is mine!\" said {F}.",
         "\"Give it to me!\" said {N}, and {HE} pulled at it. {F} pulled too."],
        ["They pulled and pulled until the {OBJ} broke.", "Snap! The {OBJ} broke into two pieces."],
        ["They were angry, and they both went home.", "{F} ran away and cried. {N} was angry at first."],
        ["But {N} missed {F}. {^HE} went to {F} and said, \"I am sorry.\" \"I am sorry too,\" said {F}.",
         "Then {N} fixed the {OBJ} with some glue, and {HE} took it to {F}. \"I am sorry,\" {HE} said."],
        ["They hugged, and then they took turns.", "After that, they never fought about the {OBJ} again."],
    ]),
    ("help a friend", [
        ["Winter came, and it was very cold.", "One night, a lot of snow fell."],
        ["{N} was warm in {POS} house. Then there was a knock at the door.",
         "{N} sat by the fire. Then {HE} heard a small voice outside."],
        ["It was {F}, {A_K}. \"I am so cold. The wind broke my roof,\" said {F}.",
         "There was {F}, {A_K}, white with snow. \"May I come in?\" asked {F}."],
        ["\"Come in quickly!\" said {N}. {^HE} gave {F} {POS} {C} scarf and a cup of tea.",
         "{N} gave {F} hot soup and a soft bed."],
        ["In the morning, they went out and fixed the roof together.",
         "The next day, the sun came out, and they made a big snowman."],
        ["\"You can always come to me,\" said {N}.", "\"I will never forget this,\" said {F}."],
    ]),
]

OPENINGS = [
    "Once upon a time, there was {A_TRAIT_KIND} named {N}. {^HE} lived {PLACE}.",
    "Once upon a time, {A_TRAIT_KIND} named {N} lived {PLACE}.",
    "Once upon a time, {PLACE}, there lived {A_TRAIT_KIND} named {N}.",
    "There was once {A_TRAIT_KIND} named {N} who lived {PLACE} with {POS} {FAM}.",
    "{N} was {A_TRAIT_KIND}. {^HE} lived {PLACE}.",
    "{N} was {A_TRAIT_KIND} who lived {PLACE}.",
    "Long ago, there was {A_TRAIT_KIND}. {POS^} name was {N}, and {HE} lived {PLACE}.",
]
LIKES = [
    "{N} liked to play outside.",
    "{^HE} loved {POS} {C2} {OBJ2} very much.",
    "Every day, {HE} went to the {P} to play.",
    "{POS^} {FAM} told {HIM} a story every night.",
    "{N} loved to look at the stars.",
    "{^HE} liked to eat {FOOD2}s.",
]


def fill(text, slots):
    """Replaces every {SLOT}; "^" inside the braces asks for a capital first letter."""
    out = []
    for part in text.split("{"):
        if not out:
            out.append(part)
            continue
        name, rest = part.split("}", 1)
        value = slots[name.replace("^", "")]
        out.append((value[0].upper() + value[1:] if "^" in name else value) + rest)
    return "".join(out)


def story(key, index):
    """The story `index` of `key`: one paragraph of plain ASCII, without a line end."""
    rng = Rng(key, index)
    hero = Being(rng)
    friend = Being(rng, taken=(hero.name,))
    lesson, beats = rng.pick(PLOTS)
    place, spot = rng.pick(PLACES)
    color, color2 = rng.pick(COLORS), rng.pick(COLORS)
    obj, obj2 = rng.pick(TOYS), rng.pick(TOYS)
    food, food2 = rng.pick(FOODS), rng.pick(FOODS)
    baked = rng.pick(["cake", "pie", "bun"])
    relative = rng.pick(FAMILY)
    trait = rng.pick(TRAITS)
    kind = hero.kind if rng.chance(60) or trait == "little" else "little " + hero.kind
    manner = rng.pick(["old", "friendly", "funny", "wise", "big"] if friend.animal else ["nice", "friendly", "funny", "tall", "clever"])
    friend_kind = friend.kind if rng.chance(50) else manner + " " + friend.kind
    slots = {
        "N": hero.name, "F": friend.name, "A_K": a(friend_kind), "OBJ": obj, "C": color, "OBJ2": obj2, "C2": color2,
        "FOOD": food, "A_FOOD": a(rng.pick(["big", "sweet", "fresh", "nice"]) + " " + food), "FOOD2": food2,
        "A_FOOD_BAKED": a(baked), "FOOD_BAKED": baked, "FLOWER": rng.pick(FLOWERS), "A_C": a(color), "A_STONE": a(rng.pick(["old shoe", "big stone", "snail", "empty box"])),
        "P": spot, "PLACE": place, "FAM": relative, 
        "A_TRAIT_KIND": a(trait + " " + kind), "LESSON": lesson, "GLAD": rng.pick(["happy", "glad", "proud"]),
        "HE": hero.they, "HIM": hero.them, "POS": hero.pos, "FHE": friend.they, "FHIM": friend.them, "FPOS": friend.pos,
    }
    parts = [rng.pick(OPENINGS)]
    if rng.chance(55):
        parts.append(rng.pick(LIKES))
    if rng.chance(35):
        parts.append(rng.pick(WEATHER))
    parts += [rng.pick(beat) for beat in beats]
    if rng.chance(80):
        parts.append(rng.pick(MORALS))
    return fill(" ".join(parts), slots)


PRIMER = [
    "{N} has a {OBJ}.", "{F} has a {OBJ}.", "{N} likes {F}.", "{F} likes {N}.", "{N} sees {F}.", "{F} sees {N}.", "{N} is {T}.", "{F} is {T}.",
    "\"Hello, {F},\" said {N}.", "\"Hello, {N},\" said {F}.", "{N} and {F} play.", "{N} gave {F} the {C} {OBJ}.", "{F} gave {N} the {C} {OBJ}.",
    "The {OBJ} is {C}.", "The {C} {OBJ} is here.", "{N} met {POS} {FAM}.", "{POS^} {FAM} met {N}.", "{N} said, \"Look, {F}!\"", "{F} said, \"Look, {N}!\"",
    "{N} ran.", "{F} ran.", "{N} sat down.", "{F} sat down.", "{N} smiled.", "{F} smiled.",
]


def primer(key, index):
    """Short sentences about two names and a thing: what comes next is mostly something that was there before."""
    rng = Rng(key, index)
    hero = Being(rng)
    friend = Being(rng, taken=(hero.name,))
    slots = {"N": hero.name, "F": friend.name, "OBJ": rng.pick(TOYS), "C": rng.pick(COLORS), "T": rng.pick(TRAITS), "POS": hero.pos, "FAM": rng.pick(FAMILY)}
    return fill(" ".join(rng.pick(PRIMER) for _ in range(8 + rng.below(8))), slots)


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--key", type=int, default=1)
    args.add_argument("--first", type=int, default=0)
    args.add_argument("--count", type=int, default=5)
    args = args.parse_args()
    for index in range(args.first, args.first + args.count):
        print(story(args.key, index))
        print()


if __name__ == "__main__":
    main()
