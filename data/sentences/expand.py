"""Fills the patterns of patterns.txt and writes sentences.jsonl: rows with `text`, `function` and the line of the pattern.

    python data/sentences/expand.py
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
FILLED = 4  # sentences drawn from a pattern with slots; one without gives itself
PERSONS = "Ann Ben Carla Dmitri Elif Farid Grace Hiro Ines Jonas Kemi Lucia Mateo Noor Olga Pavel".split()
CLAIMS = """the train covers sixty miles in the first hour|metals conduct heat better than wood|both triangles are similar
the two numbers have no common factor|the sum of the digits is divisible by nine|the graph crosses the axis only once
the price went up by a fifth|the baker sells twice as many rolls on Saturday|the water freezes from the top down
the roots take up less water in dry soil|light slows down when it enters glass|the moon always shows us the same side
the company pays the tax at the end of the year|the river floods when the snow melts|the list is already sorted
the function is called once for every element|each person shakes hands with everyone else|the dice are fair
the letters come in alphabetical order|the middle word rhymes with the last one|the doctor is the boy's mother
the island has only two ports|the second clue rules out the red house|the key opens just one of the doors
the opposite angles are equal|the diagonal cuts the square in half|the base has the same radius as the cone
the denominator cannot be zero|the exponent is even|the matrix is symmetric|the series converges
the current splits at the junction|the force acts against the motion|the gas expands when it is heated
the seeds spread with the wind|the muscle burns sugar without oxygen|the cell copies its genes before it divides
the voters prefer the second candidate to the third|the rule applies to members only|the contract ends in March
the clock loses five minutes a day|the boat drifts with the current|the tank empties faster than it fills
the shop gives a discount from three pieces on|every fourth ticket wins a prize|the discount is taken off first
the premise talks about all birds, not some|the conclusion does not follow from the first line|the word has two meanings
the younger sister is half as old|the cat sits to the left of the dog|the green bottle is heavier than the blue one
the recursion stops at one|the pointer moves to the next node|the cache is cleared on every restart
the melody repeats after eight bars|the painter used cheap pigments|the bridge carries more weight at night
prices fall when supply grows|the bank pays interest twice a year|older trees store more carbon
the sound travels faster in water|the needle points to the north|the lens turns the picture upside down
the number of edges is one less than the number of vertices|a prime has exactly two divisors|the remainder repeats
the speed is constant on the way back|the workers finish together|the shadow is longest in the evening
the medicine needs an hour to work|the smell comes from bacteria|salt lowers the freezing point
the days in between are not counted|the first of the month was a Monday|the fence has a post at both ends
the square of an odd number is odd|the vectors are perpendicular|the circle touches all three sides""".replace("\n", "|").split("|")
TOPICS = """the total cost|the number of handshakes|the third side|the order of the cards|the height of the tree|the speed of the boat
the second condition|the units digit|the age of the older brother|the area of the ring|the fold lines|the leftover paint
the first clue|the meaning of the riddle|the shape of the shadow|the position of the needle|the heat in the pan
the growth of the plants|the supply of water|the role of the catalyst|the color of the sky at dusk|the sleep of the patients
the trade between the towns|the rules of the game|the wording of the question|the incentive for the farmers
the edge cases|the empty list|the inner loop|the base case|the time limit|the overlap of the two sets|the missing page
the middle term|the sign of the slope|the constant of integration|the prime factors|the last remainder|the symmetry of the figure
the direction of the wind|the weight of the truck|the friction on the ramp|the length of the rope|the number of tiles
the memory of the witnesses|the taste of the soup|the noise in the data|the size of the sample|the date of the letter""".replace("\n", "|").split("|")
WAYS = """working backwards|using coordinates|induction on the number of steps|a table of cases|counting the complement
drawing a picture|the law of cosines|modular arithmetic|completing the square|a substitution|the pigeonhole principle
a recursive function|two pointers|symmetry|a Venn diagram|the chain rule|integration by parts|generating functions
estimating the size first|splitting the figure into triangles|looking at the extreme case|a sorted list|binary search
elimination|an analogy with water in pipes|dimensional analysis|writing out the first terms|a probability tree
Vieta's formulas|the distance formula|comparing both sides|trial division""".replace("\n", "|").split("|")
EQS = """3x + 5 = 20|x = 7|12 * 4 = 48|a + b = 15|2(n - 1) = 18|y = 3x - 2|48 / 6 = 8|17 + 26 = 43|x^2 - 5x + 6 = 0|(x - 2)(x - 3) = 0
\\frac{1}{2} + \\frac{1}{3} = \\frac{5}{6}|5! = 120|\\binom{6}{2} = 15|2^{10} = 1024|\\sqrt{144} = 12|90 - 37 = 53|0.25 * 80 = 20
A = \\pi r^2|v = d / t|60 * 2.5 = 150|s = 4 + 9 + 16 = 29|n(n + 1)/2 = 55|\\angle ABC = 40^\\circ|7 * 13 = 91|100 - 64 = 36
3 * (8 + 4) = 36|f(2) = 11|k = -4|p = 3/8|x + y = 31 and x - y = 5|1000 * 1.05 = 1050|gcd(84, 36) = 12|84 = 36 * 2 + 12""".replace("\n", "|").split("|")
CASES = """a list with one element|n = 1|n = 4|x = 0|a square of side 2|the number 12|three people in a room|a coin tossed twice
a farmer with two fields|a shop that sells only bread|a car that stops halfway|a triangle with sides 3, 4 and 5|the word "level"
a town with ten voters|two cards, one red and one black|a cup of hot tea on a cold day|a child on a swing|a year that starts on a Friday
a negative number|a very large crowd|an empty string|two friends who share a cake|a lake that freezes over|the year 2000
a plant kept in the dark|a company with one owner|a straight line through the origin|a deck of four cards""".replace("\n", "|").split("|")


def read_patterns() -> list[tuple[str, str]]:
    """(function, pattern), in the order of the file."""
    found, function = [], ""
    for line in (HERE / "patterns.txt").read_text().splitlines():
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            function = heading[1]
        elif line and not line.startswith("# "):
            found.append((function, line))
    return found


def fill(pattern: str, rng: random.Random) -> str:
    """One sentence of a pattern: every slot drawn anew."""
    draw = {
        "claim": lambda: rng.choice(CLAIMS),
        "topic": lambda: rng.choice(TOPICS),
        "way": lambda: rng.choice(WAYS),
        "eq": lambda: rng.choice(EQS),
        "case": lambda: rng.choice(CASES),
        "person": lambda: rng.choice(PERSONS),
        "n": lambda: str(rng.randint(2, 99)),
        "m": lambda: str(rng.randint(2, 40)),
    }
    text = re.sub(r"\{(\w+)\}", lambda slot: draw[slot[1]](), pattern).replace("{{", "{").replace("}}", "}")
    return re.sub(r"^(\d\. |- )?([a-z])", lambda start: (start[1] or "") + start[2].upper(), text)


def main() -> None:
    rng, rows, seen = random.Random(0), [], set()
    for number, (function, pattern) in enumerate(read_patterns()):
        for _ in range(FILLED if "{" in pattern else 1):
            text = fill(pattern, rng)
            if text not in seen:
                seen.add(text)
                rows.append({"text": text, "function": function, "pattern": number})
    (HERE / "sentences.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    print(f"{len(rows)} sentences of {len(read_patterns())} patterns")


if __name__ == "__main__":
    main()
