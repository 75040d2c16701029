"""Values the dialogues are filled with: names, cities, words, numbers.

About half of all drawn values are pronounceable nonsense, so that the model learns to copy
spellings instead of a list. Nothing here comes from a corpus.
"""

import random


def _words(text: str) -> list[str]:
    return text.split()


CAPITALS = {
    "France": "Paris", "England": "London", "Japan": "Tokyo", "Germany": "Berlin",
    "Spain": "Madrid", "Italy": "Rome", "Egypt": "Cairo", "Peru": "Lima", "Norway": "Oslo",
    "Ireland": "Dublin", "Austria": "Vienna", "Greece": "Athens", "Portugal": "Lisbon",
    "Poland": "Warsaw", "Kenya": "Nairobi", "Senegal": "Dakar", "Cuba": "Havana",
    "Turkey": "Ankara", "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen",
    "Hungary": "Budapest", "Chile": "Santiago", "Canada": "Ottawa", "Belgium": "Brussels",
    "Iceland": "Reykjavik", "Thailand": "Bangkok", "Vietnam": "Hanoi", "Morocco": "Rabat",
    "Ghana": "Accra", "Croatia": "Zagreb", "Romania": "Bucharest",
}  # fmt: skip

NAMES = _words(
    """
    Ada Alan Grace Linus Mary Omar Priya Wei Sofia Hugo Lena Nora Ivan Yuki Carla Tomas Ines
    Amir Ruth Paul Maya Leo Anna Felix Clara Boris Dora Emil Fatima Gino Hana Igor Julia Karim
    Lucia Marco Nadia Oscar Petra Rosa Samir Tara Ugo Vera Walter Xenia Yara Zoe Aron Bella
    Cyrus Diana Erik Fiona Gustav Helen Isaac Jonas Kira Lars Mona Nils Olga Pablo Rita Simon
    Tina Viktor Wanda Agnes Bruno Cora Dmitri Elsa Fabio Greta Henrik Iris Jamal Katya Liam
    Mateo Noor Otto Pia Rafael Selma Theo Ulla Vincent Willa Yusuf Zara
    """
)

CITIES = _words(
    """
    Paris London Tokyo Berlin Madrid Rome Cairo Lima Oslo Delhi Seoul Boston Dublin Vienna
    Athens Prague Sydney Toronto Chicago Nairobi Lisbon Warsaw Dakar Havana Austin Denver Zurich
    Milan Geneva Ankara Hamburg Munich Porto Seville Naples Turin Lyon Lille Kyoto Mumbai Lagos
    Tunis Quito Bogota Dallas Miami Seattle Phoenix Perth Auckland Leeds Cardiff Glasgow Malmo
    Turku Riga Vilnius Tallinn Sofia Split Krakow Gdansk Basel Graz Ghent Utrecht Cork Bilbao
    Malaga Genoa Verona Jakarta Manila Busan Fukuoka Chennai Karachi Doha Muscat Amman Beirut
    Haifa Casablanca Durban Kampala Lusaka Montreal Calgary Houston Atlanta Portland Memphis
    Cusco Cordoba Rosario Recife
    """
)

WORDS = _words(
    """
    apple river silver garden winter falcon copper lantern orange harbor violet marble thunder
    meadow pepper crystal cactus dragon saddle tunnel window basket candle forest hammer island
    jacket kitten ladder magnet needle oyster parrot quartz ribbon sunset turtle velvet walnut
    yellow zebra anchor bridge cherry donkey engine feather guitar honey iron jungle kettle
    lemon mirror nickel ocean planet rocket spider temple umbrella village whistle almond beacon
    castle dolphin ember fiddle ginger hollow indigo jasmine kayak lizard mango nutmeg olive
    pebble quill raven salmon timber urchin valley willow yarrow acorn badger canyon daisy eagle
    fossil glacier hazel ivory jigsaw kernel lilac maple noodle otter pillow quiver rabbit
    sailor tulip viper wagon barrel button camel cloud coffee drum fern flute fox goat grape hat
    horse key lamp leaf lion moss owl pearl piano plum pony prism rain rope rose sand seed shell
    ship snow spoon stone storm straw sugar swan table tea thread tiger tower train tree trout
    vase violin wheel whale wolf wood bottle carpet pencil ticket blanket notebook bucket helmet
    camera clock hammock scarf glove chair teapot suitcase backpack bicycle sandwich pancake
    biscuit cookie muffin carrot potato tomato onion garlic radish pumice cobalt amber topaz
    bronze sulfur granite cotton leather paper ladybug beetle cricket hornet pigeon sparrow
    heron pelican badminton puzzle riddle
    """
)

COLORS = _words(
    """
    red blue green black white yellow purple orange pink brown grey gold
    """
)
SKIES = _words(
    """
    sunny rainy cloudy windy foggy snowy clear stormy
    """
)

ONSETS = _words(
    """
    b c d f g h j k l m n p r s t v w y z br cr dr fr gr pr tr bl cl fl gl pl sl sh st th ch wh
    sk sn sp sw qu ph
    """
)
VOWELS = _words(
    """
    a e i o u a e i o u ai ea ee oo ou ie oa au y
    """
)
CODAS = _words(
    """
    n r l s t m d k ck sh nd mp st nt ss ll th x b g p rt ng ght se ne te re
    """
)
ENDINGS = _words(
    """
    a o e us el in er on y is et ar ia en ix um
    """
)


def nonsense(rng: random.Random) -> str:
    """Draw a pronounceable word of one to three syllables, lower case."""
    parts: list[str] = []
    for _ in range(rng.choices([1, 2, 3], [30, 58, 12])[0]):
        parts += [rng.choice(ONSETS) if rng.random() < 0.92 else "", rng.choice(VOWELS)]
        if rng.random() < 0.45:
            parts.append(rng.choice(CODAS))
    if len(parts) < 3 or (len(parts) < 6 and rng.random() < 0.3):
        parts.append(rng.choice(ENDINGS))
    return "".join(parts)


def word(rng: random.Random) -> str:
    return rng.choice(WORDS) if rng.random() < 0.5 else nonsense(rng)


def name(rng: random.Random) -> str:
    return rng.choice(NAMES) if rng.random() < 0.45 else nonsense(rng).capitalize()


def city(rng: random.Random) -> str:
    return rng.choice(CITIES) if rng.random() < 0.45 else nonsense(rng).capitalize()


def number(rng: random.Random) -> int:
    """Draw a number of one to four digits; two and three digits are the most frequent."""
    digits = rng.choices([1, 2, 3, 4], [12, 40, 34, 14])[0]
    return rng.randint(10 ** (digits - 1), 10**digits - 1)
