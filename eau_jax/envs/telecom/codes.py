"""The acts of a telecom agent, and groups of them."""

import enum


class Do(enum.IntEnum):
    """`Act.code`: the agent's tools, the phone's actions (asked for in words, or called in solo mode), the rest."""

    MALFORMED = 0                        # neither words nor a tool call
    GET_CUSTOMER_BY_PHONE = 1
    GET_CUSTOMER_BY_ID = 2
    GET_CUSTOMER_BY_NAME = 3
    GET_DETAILS_BY_ID = 4
    SUSPEND_LINE = 5
    RESUME_LINE = 6
    GET_BILLS_FOR_CUSTOMER = 7
    SEND_PAYMENT_REQUEST = 8
    GET_DATA_USAGE = 9
    ENABLE_ROAMING = 10
    DISABLE_ROAMING = 11
    TRANSFER_TO_HUMAN_AGENTS = 12
    REFUEL_DATA = 13
    CHECK_STATUS_BAR = 14
    CHECK_NETWORK_STATUS = 15
    CHECK_NETWORK_MODE_PREFERENCE = 16
    SET_NETWORK_MODE_PREFERENCE = 17
    RUN_SPEED_TEST = 18
    TOGGLE_AIRPLANE_MODE = 19
    CHECK_SIM_STATUS = 20
    RESEAT_SIM_CARD = 21
    TOGGLE_DATA = 22
    TOGGLE_ROAMING = 23
    CHECK_DATA_RESTRICTION_STATUS = 24
    TOGGLE_DATA_SAVER_MODE = 25
    CHECK_APN_SETTINGS = 26
    SET_APN_SETTINGS = 27
    RESET_APN_SETTINGS = 28
    CHECK_WIFI_STATUS = 29
    TOGGLE_WIFI = 30
    CHECK_WIFI_CALLING_STATUS = 31
    TOGGLE_WIFI_CALLING = 32
    CHECK_VPN_STATUS = 33
    CONNECT_VPN = 34
    DISCONNECT_VPN = 35
    CHECK_INSTALLED_APPS = 36
    CHECK_APP_STATUS = 37
    CHECK_APP_PERMISSIONS = 38
    GRANT_APP_PERMISSION = 39
    CAN_SEND_MMS = 40
    REBOOT_DEVICE = 41
    CHECK_PAYMENT_REQUEST = 42
    MAKE_PAYMENT = 43
    BAD_CALL = 44                        # no such tool, or wrong arguments
    ASK = 45                             # asks the user for the facts in `mask`
    ASK_SOLVED = 46                      # asks whether the problem is gone
    ANNOUNCE = 47                        # tells the user that he is being transferred
    CHAT = 48                            # any other words
    FINISH = 49                          # solo mode only: the agent is done


FIRST_PHONE, LAST_PHONE = Do.CHECK_STATUS_BAR, Do.MAKE_PAYMENT
LOOKUPS = (Do.GET_CUSTOMER_BY_PHONE, Do.GET_CUSTOMER_BY_ID, Do.GET_DETAILS_BY_ID, Do.GET_BILLS_FOR_CUSTOMER,
           Do.GET_DATA_USAGE)           # the call's first value is a record's number, negative where there is none
ON_LINES = (Do.SUSPEND_LINE, Do.RESUME_LINE, Do.ENABLE_ROAMING, Do.DISABLE_ROAMING, Do.REFUEL_DATA)
WRITES = (Do.SET_NETWORK_MODE_PREFERENCE, Do.TOGGLE_AIRPLANE_MODE, Do.RESEAT_SIM_CARD, Do.TOGGLE_DATA, Do.TOGGLE_ROAMING,
          Do.TOGGLE_DATA_SAVER_MODE, Do.SET_APN_SETTINGS, Do.RESET_APN_SETTINGS, Do.TOGGLE_WIFI, Do.TOGGLE_WIFI_CALLING,
          Do.CONNECT_VPN, Do.DISCONNECT_VPN, Do.GRANT_APP_PERMISSION, Do.REBOOT_DEVICE, Do.MAKE_PAYMENT)
SEARCHES = (Do.TOGGLE_AIRPLANE_MODE, Do.RESEAT_SIM_CARD, Do.TOGGLE_DATA, Do.TOGGLE_ROAMING, Do.RESET_APN_SETTINGS,
            Do.REBOOT_DEVICE)            # after these the phone looks for a network; so do valid mode and APN settings
