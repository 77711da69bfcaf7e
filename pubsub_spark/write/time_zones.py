"""Java's names of time zones, which Spark uses for the session's zone, as names that Arrow knows.

Java takes offsets in many spellings, alone or after `UTC`, `GMT` or `UT`, and Spark also the old three-letter ids
(`ZoneId.SHORT_IDS`). Regions have the same name in both.
https://docs.oracle.com/en/java/javase/17/docs/api/java.base/java/time/ZoneId.html
"""

from __future__ import annotations

import re

_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{1,2})(?::?00)?)?")

_SHORT_IDS = {
    "Z": "UTC",
    "UT": "UTC",
    "EST": "-05:00",
    "MST": "-07:00",
    "HST": "-10:00",
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}


def to_arrow_zone(zone: str) -> str:
    offset = _OFFSET.fullmatch(zone)
    if offset is None:
        return _SHORT_IDS.get(zone, zone)
    sign, hours, minutes = offset.groups("0")
    return f"{sign}{int(hours):02}:{int(minutes):02}"
