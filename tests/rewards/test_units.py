"""Two units that differ are two amounts, and one that is not named or not known matters to nobody."""

import pytest

from gradus.environments.verifiable.environment import judge_marked
from gradus.environments.verifiable.items import Item
from gradus.rewards import correctness
from gradus.rewards.answers import same_answer

RIGHT = """
14 = 14 km
14 km = 14
5000 m = 5 km
21 days = 3 weeks
2 hours = 120 minutes
$5 = 5 dollars
$5$ = 5 cents
500 cents = $5.00
60 km/h = 60 km per hour
60 kilometers an hour = 60 km/h
60 kmh = 60 km/h
60 km = 60 km/h
25 cm^2 = 25 square centimeters
5 ml = 5 cubic centimeters
20 °C = 20 degrees
20 degrees Celsius = 20°C
5 apples = 5 pieces
5 min = 5 minutes
5m = 5 minutes
5 pounds = £5
5 pounds = 5 lbs
five days = 5 days
3 years = 36 months
18 dollars per day = $18
60 inches = 5 feet
$18 in total = 18 dollars
5 million dollars = $5,000,000
12 in all = 12 miles
1/2 mile = 0.5 miles
0.5 hours = 30 minutes
18% = 18 percent
5 m/s = 5 meters per second
5 US dollars = 5 dollars
1 fortnight = 2 weeks
4 sq ft = 4 square feet
5\\text{ km} = 5 kilometers
the train takes 3 hours = 3 hours
It took us 5 = 5 hours
"""
WRONG = """
14 kg = 14 km
5 m = 5 km
3 days = 3 weeks
5 cents = $5
60 km/h = 60 mph
25 m^2 = 25 cm^2
1 m^2 = 100 cm^2
20 °C = 20 °F
5 kg = 5 lbs
five days = 5 weeks
5 MB = 5 GB
5 m/s = 5 km/s
USD 5 = 5 euros
100 pounds = 100 dollars
4 square feet = 4 square meters
21 days = 2 weeks
5\\text{ km} = 5 m
"""


@pytest.mark.parametrize(
    ("pair", "right"),
    [(line, right) for lines, right in ((RIGHT, True), (WRONG, False)) for line in lines.strip().split("\n")],
)
def test_a_unit_counts_if_both_name_one(pair, right):
    given, gold = pair.split(" = ")
    assert same_answer(given, gold) is right


@pytest.mark.parametrize(
    ("question", "given", "gold", "paid"),
    [
        ("Convert 18 m to mm.", "18 m", "18000 mm", 0.0),
        ("Convert 18 m to mm.", "Convert 18 m to mm.", "18000 mm", 0.0),
        ("Convert 1,200 m to km.", "1200 meters", "1.2 km", 0.0),
        ("How many cents are $5?", "$5", "500 cents", 0.0),
        ("Convert 18 m to mm.", "1800 cm", "18000 mm", 1.0),
        ("Convert 18 m to mm.", "18000", "18000 mm", 1.0),
        ("A film begins at 5 and ends at 7. How long is it?", "120 minutes", "2 hours", 1.0),
        ("Of 18 m and 25 m, which is longer?", "25 m", "25 m", 1.0),
    ],
)
def test_an_amount_of_the_question_in_its_own_unit_converts_nothing(question, given, gold, paid):
    """The question itself earned the full reward where the task was to convert."""
    completion = f"<answer> {given} </answer>"
    assert correctness([question], [completion], [gold]) == [paid]
    assert correctness([[{"role": "user", "content": question}]], [completion], [gold]) == [paid]
    assert judge_marked(Item(question=question, answer=gold), completion).score == paid
