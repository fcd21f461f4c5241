"""The sub-tasks of the airline; see `workshop_atoms` for how they are written."""

from eau_jax.synth.domain import Atom
from eau_jax.synth.domains.airline_wishes import (
    bags, bags_new, book, cancel, compensate, fare, more_people, move, paid, rename, upgrade)

_NUMBER = ("The reservation number is {reservation_id}.", "It is reservation {reservation_id}.",
           "My booking code is {reservation_id}.")
_CANCEL = ("I would like to cancel a trip.", "Please call off a reservation of mine.",
           "I do not need one of my trips any more.")
_WHY = ("{which}{why}", "{which}Please cancel all of it. {why}")
_MOVE = ("I would like to fly at another time.", "Please put a trip of mine on another flight.",
         "One of my flights does not suit me any more.")
_MOVED = ("{which}I want to fly from {origin} to {destination} on {day} at {time} instead.",
          "{which}Make it the flight from {origin} to {destination} at {time} on {day}, please.")
_CABIN = ("I would like to sit in another cabin.", "Please change the cabin of a trip of mine.",
          "I want more comfort on one of my trips.")
_SEAT = ("{which}I want {cabin} on the same flights.", "{which}All flights stay, but in {cabin}.")
_BAGS = ("My bags are not as I said.", "I would like to change the bags of a trip.",
         "It is about the bags on one of my trips.")
_COUNT = ("{which}It shall be {total_baggages} in all.", "{which}In all {total_baggages}, please.")
_PEOPLE = ("Somebody else travels in place of a passenger.", "I would like to change who travels.",
           "A passenger of mine stays at home.")
_INSTEAD = ("{which}Instead of {old} it is {first_name} {last_name}, born {dob}.",
            "{which}{first_name} {last_name}, born {dob}, takes the place of {old}.")
_MORE = ("Somebody else wants to come along.", "I would like to add a passenger.", "There is one more of us on a trip.")
_ALONG = ("{which}It is {first_name} {last_name}, born {dob}.", "{which}{first_name} {last_name}, born {dob}, comes along.")
_LATE = ("There was trouble with a flight of mine.", "I am not happy with one of my flights.",
         "I would like something for the trouble that I had.")
_TROUBLE = ("{which}My flight on {day} {what}.", "{which}The one on {day} {what}.")
_BOOK = ("I would like to book a flight.", "I need a new reservation.", "I want to go on a trip.")
_TRIP = ("One way from {origin} to {destination} on {day}, leaving at {times}, in {cabin}, for {who}. Bags in all: "
         "{total_baggages}. Insurance: {insurance}.",
         "For {who}: from {origin} to {destination} on {day} at {times}, {cabin}, one way. Insurance: {insurance}. Bags in "
         "all: {total_baggages}.")
_PAY = ("Use {payment}.", "It should be {payment}.")
ATOMS = (
    Atom("book", "booking", "book", "write", book(), _BOOK, details=_TRIP, payment=_PAY),
    Atom("book_connection", "booking", "book", "write", book(connects=True), _BOOK, details=_TRIP, payment=_PAY),
    Atom("book_voucher", "booking", "book", "write", book(voucher=True), _BOOK, details=_TRIP, payment=_PAY),
    Atom("bags_new", "booking", "bags_new", "write", bags_new, (
        "And then I need more bags on the new trip.", "There is something about the bags of that booking.",
        "I forgot some bags for the new trip."), details=_COUNT, payment=_PAY, requires="book"),
    Atom("cancel_business", "cancelling", "cancel", "write", cancel(cabin="business"), _CANCEL, _NUMBER, _WHY),
    Atom("cancel_recent", "cancelling", "cancel", "write", cancel(recent=True), _CANCEL, _NUMBER, _WHY),
    Atom("cancel_insured", "cancelling", "cancel", "write", cancel(insured=True), _CANCEL, _NUMBER, _WHY),
    Atom("cancel_called_off", "cancelling", "cancel", "write", cancel(when="cancelled"), _CANCEL, _NUMBER, _WHY),
    Atom("move", "flights", "flights", "write", move(), _MOVE, _NUMBER, _MOVED, _PAY),
    Atom("move_back", "flights", "flights", "write", move(back=True), _MOVE, _NUMBER, _MOVED, _PAY),
    Atom("upgrade", "flights", "flights", "write", upgrade(), _CABIN, _NUMBER, _SEAT, _PAY),
    Atom("bags", "extras", "bags", "write", bags(), _BAGS, _NUMBER, _COUNT, _PAY),
    Atom("rename", "extras", "passengers", "write", rename, _PEOPLE, _NUMBER, _INSTEAD),
    Atom("compensate_cancelled", "trouble", "compensation", "write", compensate("cancelled"), _LATE, _NUMBER, _TROUBLE),
    Atom("compensate_delayed", "trouble", "compensation", "write", compensate("delayed"), _LATE, _NUMBER, _TROUBLE),
    Atom("fare", "question", "question", "ask", fare, (
        "I would like to know a fare.", "What does a flight cost?", "I need the price of a flight."), details=(
        "From {origin} to {destination} on {day} at {time}, {cabin}, for one.",
        "It leaves {origin} for {destination} at {time} on {day}; one seat in {cabin}.")),
    Atom("paid", "question", "question", "ask", paid, (
        "I would like to know what I paid for a trip.", "How much was a reservation of mine?",
        "I need the amount of a reservation."), _NUMBER, (
        "{which}I want to know the amount.", "{which}Only the amount, please.")),
    Atom("cancel_late", "cancelling", "cancel", "refuse", cancel("cancel"), _CANCEL, _NUMBER, _WHY),
    Atom("cancel_flown", "cancelling", "cancel", "refuse", cancel("flown", cabin="business", when="flown"), _CANCEL, _NUMBER,
         _WHY),
    Atom("move_basic", "flights", "flights", "refuse", move("basic_economy", refused="basic"), _MOVE, _NUMBER, _MOVED, _PAY),
    Atom("upgrade_flown", "flights", "flights", "refuse", upgrade("flown", "flown"), _CABIN, _NUMBER, _SEAT, _PAY),
    Atom("fewer_bags", "extras", "bags", "refuse", bags("fewer"), _BAGS, _NUMBER, _COUNT, _PAY),
    Atom("more_passengers", "extras", "passengers", "refuse", more_people, _MORE, _NUMBER, _ALONG),
    Atom("no_compensation", "trouble", "compensation", "refuse", compensate("cancelled", "certificate"), _LATE, _NUMBER,
         _TROUBLE),
)
