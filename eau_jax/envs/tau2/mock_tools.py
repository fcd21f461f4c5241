"""The tools of tau2-bench's mock domain: a task list, and the notification inbox of its user.

Semantics and error texts follow tau2-bench 1.0.1 (Barres et al. 2025, MIT).
"""

from typing import Any, Mapping

from eau_jax.envs.tau2.call import TRANSFER, Refused, Tool, parameters, text, whole
from eau_jax.envs.tau2.database import Record, View

Args = Mapping[str, Any]
_STATUS = text("new status", "pending", "completed")


def create_task(view: View, args: Args) -> Record:
    if view.get("users", args["user_id"]) is None:
        raise Refused(f"User {args['user_id']} not found")
    key = f"task_{sum(1 for _ in view.rows('tasks')) + 1}"
    task = {"task_id": key, "title": args["title"], "description": args.get("description"), "status": "pending"}
    view.put("tasks", key, task)
    view.edit("users", args["user_id"])["tasks"].append(key)
    return task


def get_users(view: View, args: Args) -> list[Record]:
    return [user for _, user in view.rows("users")]


def update_task_status(view: View, args: Args) -> Record:
    if view.get("tasks", args["task_id"]) is None:
        raise Refused(f"Task {args['task_id']} not found")
    task = view.edit("tasks", args["task_id"])
    task["status"] = args["status"]
    return task


def dismiss_notification(view: View, args: Args) -> str:
    key = args["notification_id"]
    if view.get("notifications", key) is None:
        raise Refused(f"Notification {key} not found")
    view.edit("notifications", key)["status"] = "read"
    return f"Notification {key} dismissed"


def mock_tools() -> dict[str, Tool]:
    """Every tool of the agent by its name."""
    tools = (
        TRANSFER,
        Tool("create_task", "write", "Create a task for a user.",
             parameters(optional=("description",), user_id=text("who creates it"), title=text("title of the task"),
                        description=text("more about it")), create_task),
        Tool("get_users", "read", "All users.", parameters(), get_users),
        Tool("update_task_status", "write", "Change the status of a task.",
             parameters(task_id=text("id of the task"), status=_STATUS), update_task_status),
    )
    return {tool.name: tool for tool in tools}


def mock_user_tools() -> dict[str, Tool]:
    """Every tool of the user by its name."""
    tools = (
        Tool("check_notifications", "read", "All notifications in the inbox.", parameters(),
             lambda view, args: [notification for _, notification in view.rows("notifications")]),
        Tool("dismiss_notification", "write", "Mark a notification as read.",
             parameters(notification_id=text("id of the notification")), dismiss_notification),
    )
    return {tool.name: tool for tool in tools}


# What a task's set-up and assertions call besides tools.

def add_notification(view: View, args: Args) -> None:
    view.put("notifications", args["notification_id"],
             {"notification_id": args["notification_id"], "message": args["message"], "status": "unread",
              "task_id": args.get("task_id")})


def assert_number_of_tasks(view: View, args: Args) -> bool:
    user = view.get("users", args["user_id"])
    return user is not None and len(user["tasks"]) == args["expected_number"]


def assert_task_status(view: View, args: Args) -> bool:
    task = view.get("tasks", args["task_id"])
    return task is not None and task["status"] == args["expected_status"]


def assert_notification_status(view: View, args: Args) -> bool:
    notification = view.get("notifications", args["notification_id"])
    return notification is not None and notification["status"] == args["expected_status"]


def mock_functions() -> dict[str, dict[str, Tool]]:
    """Those of the agent's side and of the user's, by name."""
    agents = (
        Tool("assert_number_of_tasks", "assertion", "A user has so many tasks.",
             parameters(user_id=text("whose"), expected_number=whole("how many")), assert_number_of_tasks),
        Tool("assert_task_status", "assertion", "A task has this status.",
             parameters(task_id=text("id of the task"), expected_status=_STATUS), assert_task_status))
    users = (
        Tool("add_notification", "set-up", "A notification arrives.",
             parameters(optional=("task_id",), notification_id=text("id of the notification"), message=text("what it says"),
                        task_id=text("the task that it is about")), add_notification),
        Tool("assert_notification_status", "assertion", "A notification has this status.",
             parameters(notification_id=text("id of the notification"), expected_status=text("status", "unread", "read")),
             assert_notification_status))
    return {"assistant": {tool.name: tool for tool in agents}, "user": {tool.name: tool for tool in users}}
