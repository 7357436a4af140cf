"""The databases that nothing is trained on: those of the development and the held-out questions.

This module holds names and no code, as `sql_pool_databases` does.
"""

from __future__ import annotations

from rollout.envs.sql.sql_catalog import Database, Link, Table, Use, columns_of, rdataset

_CINEMA = Database(
    "cinema",
    Use.DEVELOPMENT,
    (("raw_oscars", rdataset("openintro/oscars")),),
    (
        Table(
            "actors",
            "actors",
            "actor",
            "SELECT name, min(birth_pl), min(birth_date) FROM raw_oscars GROUP BY name"
            " ORDER BY name",
            columns_of("name Tl name\nbirth_place Tc place of birth\nbirth_date Td date of birth"),
        ),
        Table(
            "awards",
            "awards",
            "award",
            "SELECT oscar_yr, award, name, movie, age FROM raw_oscars",
            columns_of(
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
    (("raw_items", rdataset("openintro/fastfood")),),
    (
        Table(
            "items",
            "menu items",
            "menu item",
            "SELECT restaurant, item, calories, total_fat, sodium, sugar, protein FROM raw_items",
            columns_of(
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
    (("raw_characters", rdataset("dplyr/starwars")),),
    (
        Table(
            "characters",
            "characters",
            "character",
            "SELECT name, height, mass, hair_color, eye_color, birth_year, sex, homeworld, species"
            " FROM raw_characters",
            columns_of(
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
    (("raw_storms", rdataset("dplyr/storms")),),
    (
        # A name comes back in later years; a storm over New Year keeps the year of its first row.
        Table(
            "storms",
            "storms",
            "storm",
            "SELECT name || '-' || year, name, year, max(wind) FROM raw_storms"
            " GROUP BY name, year ORDER BY year, name",
            columns_of(
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
            columns_of(
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
    (("raw_states", rdataset("dslabs/murders")), ("raw_arrests", rdataset("datasets/USArrests"))),
    (
        Table(
            "states",
            "states",
            "state",
            "SELECT state, abb, region, population, total FROM raw_states",
            columns_of(
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
            columns_of(
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
    (("raw_players", rdataset("openintro/nba_players_19")),),
    (
        Table(
            "teams",
            "teams",
            "team",
            "SELECT DISTINCT team_abbr, team FROM raw_players ORDER BY team_abbr",
            columns_of("code T- code\nname Tl name"),
        ),
        Table(
            "players",
            "players",
            "player",
            "SELECT first_name || ' ' || last_name, team_abbr, position, number, height"
            " FROM raw_players",
            columns_of(
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

UNSEEN_DATABASES = (
    *(_CINEMA, _FASTFOOD),
    *(_STARWARS, _STORMS, _STATES, _BASKETBALL),
)
"""In the order in which their questions are written: development, then held-out."""
