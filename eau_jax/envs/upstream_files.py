"""Which upstream files tau2-bench and UserGym worlds read, with their SHA-256, and a check of a folder against them.

The files are upstream's own (tau2-bench a2c0247, folder data/tau2/domains; UserRL cf55a30) under the names used here;
this package holds none of them.
"""

import hashlib
import shlex
from pathlib import Path
from typing import NamedTuple

TAU2 = "https://github.com/sierra-research/tau2-bench at a2c024725189473d2d7cea3a5cfdbcc67478e41f"
USERGYM = "https://github.com/SalesforceAIResearch/UserRL at cf55a30bc3795ca5b8b4a85dc4fec3bd48c2b233"
_FOLDERS = {"persuade": "persuasion", "search": "bamboogle"}    # names of gyms' parquet folders where they differ
BLOCK = 1 << 20
FILES: dict[str, str] = {
    "tau2/LICENSE": "e67c5aa0074dfcaefd3c3a1aedb94cb539234aecd15d5a972574e3200e6252fe",
    "tau2/airline/db.json": "1af9fea6e03ca7ca15a22bb3fcaf3e351393e3fc9070b6777947da8996f7531b",
    "tau2/airline/policy.md": "10dc0525421521208be39cee235bba84a16e2bcba9899eb93d92cd81d2f62fc4",
    "tau2/airline/split_tasks.json": "b22ced4d9a9850ac9aea31c53bdcb6d6009058140bd9acc7db37c1d36222ba8b",
    "tau2/airline/tasks.json": "ccd8ba737b4cc371415af70151187788f728d6108d0916e73bb4317b40542052",
    "tau2/mock/db.json": "8661f80b4c693bb15ef2fe6781d24a5765240d61fc74387c770133953f9113ea",
    "tau2/mock/policy.md": "50ccbefac7c9ba77ce54131d61cfc6882f74b88ace66771115f9d867ec098203",
    "tau2/mock/policy_solo.md": "2608375977bdeedd9cf34ab437b213403c8e97e9929d5094338355a994ac0c86",
    "tau2/mock/split_tasks.json": "613c3298e6fd3cf03f71f848ecee519068eb4df54a1ceb28596f5aa443ee6581",
    "tau2/mock/tasks.json": "0d8bcd14798bf2e6e082432147f62570c57b0897b4e4e388c95bb02ecbe5d8cf",
    "tau2/mock/user_db.json": "78d424b5177e430b7f483787a956ad3a6a0880e8e5b312be8e373b15c876d51f",
    "tau2/retail/db.json": "413a65160adbdb5fde0ffc0015c49b6d70250b10c18128de169b597af7766765",
    "tau2/retail/policy.md": "2c9652afbce57d6e087768d37cda64d31c53d50b3e3225cfdb791bac66466467",
    "tau2/retail/split_tasks.json": "ed0580ec52575b63fbf76568af42490da6ee7783ecb4aa81af46961291358f20",
    "tau2/retail/tasks.json": "8e03ebce7901bd6218e7a7dc3105faa9324091a68058f7fe61c65262868812e8",
    "tau2/telecom/db.toml": "562d647ef9d7df8df91eafd8ee76036e707c8f9e32aaedc4a7fde06975aea2c0",
    "tau2/telecom/main_policy.md": "95943844a0cf11fdf0e2842b483b81d9f9338aa53235712ed131db075d086ed7",
    "tau2/telecom/main_policy_solo.md": "781296ae5419169cb64aac0c4fa2aa6129c78f3c1592f64abd80df6fbabb7042",
    "tau2/telecom/split_tasks.json": "605b488bb9a6acb3c7f4505240a855fdc8681d09aadb16a8f38b2efcfc5c3aec",
    "tau2/telecom/tasks.json": "37e562e1ae3242577407e1303b1548bc64e7ea68e37d36173e6747990ceaf8a4",
    "tau2/telecom/tasks_small.json": "c8ea6f75adc18a8ad363974292cbd26b6e8b0e348ec87d265a4188e0088a8f24",
    "tau2/telecom/tech_support_manual.md": "015a3ee49ec8c199c5e1a059c922081937b92cf3a5ea74fedbc4357816f389ba",
    "tau2/telecom/tech_support_workflow.md": "64f3ccd13875d14f358b21b9af221dab09e0e7bf5690d0e4322fb91855a43a4d",
    "tau2/telecom/tech_support_workflow_solo.md": "b174d1f9705b5d7df49468daf99560a5633f86d23e10499a1166a7753706a412",
    "tau2/telecom/user_db.toml": "4886107ea0c16f8e16d74bef91cfb557de61822afe9361f5a9b241806aea2e4c",
    "tau2/user_simulator/simulation_guidelines.md": "740a29dfa64d7bc08eea3bf7493575b914a63f744acbaf7f199ee07eddaf72d3",
    "tau2/user_simulator/simulation_guidelines_tools.md":
        "cbf3d8a4d8642fd04e559862f1afef55d7dd4e6a7e727ca49e239023c599de0c",
    "usergym/LICENSE.txt": "a32115015c1eea6186e519fa03ab3b77844170a75cf57ddbeb57f15dae44729a",
    "usergym/function/functions.json": "19a0c82902e2e6c54f0c63387017eb72a307b821fc46987468f1911dc5c9c3fb",
    "usergym/function/test.parquet": "1d808502474f11f3664b83628d80a4c892df13afa7bfe5a507bafe01a6c50a27",
    "usergym/function/train.parquet": "53b27bcacff165c27dc670088ed7e409d66e0e4270228c8f486d3ec8c81dd1bc",
    "usergym/intention/all_intentions_test.json": "6ebd2336a96d9b5a6a096eef17f899efc6068d2af959ef0b30a4adc6a1620725",
    "usergym/intention/all_intentions_train.json": "0091980a2e626f48a449ecfc7faf142d7d05a208628a5817c3106de23cb84fee",
    "usergym/intention/test.parquet": "e27c380bccad8835c8ac5b546a2a9473d7432bbe5f968b209aca13df82a204f7",
    "usergym/intention/train.parquet": "06e998f8147d5ac24b656783d3020f8021393c05b47e86cbb409f178ab8532b9",
    "usergym/merged/alltest.parquet": "bfe1ef4c370ce6ed52f79cc498be1c1dc724ab0afd74f6577fd67d70a6e8f50d",
    "usergym/merged/alltrain.parquet": "6676f7a31777a335018f9634ea316ddba30cb34ea3f63e24f9f21f055d952e5a",
    "usergym/persuade/test.parquet": "19ee106c3e6a1b4eb1668f482aa53770e9b8a6e28f4016976671a89d5fdbd3da",
    "usergym/persuade/train.parquet": "4ae7b15746a1d3d75c902c7d8f6fcc813da2f39b1149ff6c2040673b3c30d27f",
    "usergym/search/questions.json": "76153a335e8482ac257b8ce83cf2db030ce2b06351cc86c1a1df9d05cb2146c2",
    "usergym/search/test.parquet": "4c4d519166ff849786424c3fdb730bece7ba062f56905aa2f49d95eb9442dee0",
    "usergym/tau/tau_test.json": "b0ec857f193736dc55088b481c5d43407faccee663524ec05d519500d912683e",
    "usergym/tau/tau_train.json": "08538540d14d0bde0e96c9d2747ecb66f58631f28098c25f0734b41cf0fed12d",
    "usergym/tau/test.parquet": "43692ba2e33f051f8925626ab8d5b32cfffe753e2342f10e91fa646b668348b3",
    "usergym/tau/train.parquet": "5e3b47a9c5cf05c9c2b3473fd492b093f066a7602165eca17fcfaa623c9f0b5e",
    "usergym/telepathy/all_entities_refined.json": "6257ee9a029a1d432930199d3428951993dd84aaa79e5a08dc8b842a4b4d3349",
    "usergym/telepathy/test.parquet": "4f2ffc13b52ed82e7b2f69d8f958ed444ba91dd7247bde756c9b507c26fb6f5e",
    "usergym/telepathy/train.parquet": "5dea2f88ca5c012af8e130ba365fd558af07904bfa38086b099ed193c71b1d42",
    "usergym/travel/travel2222_test.parquet": "3cd7f4f7565f802709279f0dd906329d1cb519749a3b48b711a7c851f7b1e59f",
    "usergym/travel/travel2222_train.parquet": "962d863279685658b8be4ec0feece577b7cfa595204103313c4b476ae2a2c505",
    "usergym/travel/travel22_test.parquet": "145ec62f2754c33b39be743f853206aa3fc8ddb787c4e235959367cee3e8a135",
    "usergym/travel/travel22_train.parquet": "d9e7dcc050e9e1f5d3c2d75faa4b3e3864d32ff16b68f31d0bbe33e3851fb863",
    "usergym/travel/travel233_test.parquet": "f8bcfbe6ac58ade82c61b1708cb6f83896f2c6f0ecf1aa936495e3b32462ecaf",
    "usergym/travel/travel233_train.parquet": "5b548c5325bea74609f01e613cf8c8478933d52170c14bd1f246e918bef42429",
    "usergym/travel/travel333_test.parquet": "da9c11471bb84889403ace53dd57dc3e4d4ad66d1002e2f13f175b6101b22ead",
    "usergym/travel/travel333_train.parquet": "3c40e163081ff24cae343f715f55a582c158af854ed9c301e1281bb704de32c0",
    "usergym/travel/travel334_test.parquet": "1c32fa46ad1713c44ef88bffb83065c749e7eb59ae3d005cf626c0d540e2fc01",
    "usergym/travel/travel334_train.parquet": "ab9833e9d5f303930363360a1547959a2e08f7ce7b6b7a97a2709713cf466ae1",
    "usergym/travel/travel33_test.parquet": "7a9c6713bb6c498dcfb93e66b6f322ec10b6d5d6b62a9cc3d1a98840d103df9c",
    "usergym/travel/travel33_train.parquet": "8c61448fa773482339ce90b555260c15c0e5e00b08023c8d5b960ccfe7a1527b",
    "usergym/travel/travel444_test.parquet": "c9c50d18bc1ec6ce6ccbc17c0039bd5b68fdcf3867a9e7c5f952fe69f6843565",
    "usergym/travel/travel444_train.parquet": "6999bf9904852f82dbd9ddba772893e2ae4360cb14e419978844029a2ac07892",
    "usergym/travel/travel44_test.parquet": "35884818ef3dc599c85ed47256191c66d908ef9c40ca2e9592e38ef1cb75db9d",
    "usergym/travel/travel44_train.parquet": "707384cf09692900242b135aa83d61530b435cb8c7ea7d4806aeb4d8f79adb57",
    "usergym/turtle/all_stories_refined.json": "cd616b9a0ab9fd6ac5d1148857682362812732b227e001a7e119866d0209e46b",
    "usergym/turtle/test.parquet": "261116ea2396a18d7a6c40b5ad2fdd408c30862e2988c70e190c677c5333baa6",
    "usergym/turtle/train.parquet": "7923a15fe0b8a964bfc6a9bd5d1d8a88ad23d84d6882149d22156eacadf975f8",
}


class Checked(NamedTuple):
    """What a folder holds of the files that were looked for, by name."""

    good: tuple[str, ...]
    missing: tuple[str, ...]
    different: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return not self.missing and not self.different


def check(folder: str | Path, part: str = "") -> Checked:
    """Compares the files below `folder` with upstream's.

    Args:
      folder: holds `tau2` and `usergym`.
      part: only names that begin so, such as "tau2/retail/"; "" for all.

    Raises:
      ValueError: when no name begins with `part`.
    """
    names = [name for name in FILES if name.startswith(part)]
    if not names:
        parts = sorted({"/".join(name.split("/")[:2]) + "/" for name in FILES if name.count("/") > 1})
        raise ValueError(f"part {part!r}; allowed: the beginning of a file name, such as {', '.join(parts)}")
    good, missing, different = [], [], []
    for name in names:
        path = Path(folder) / name
        (missing if not path.is_file() else good if digest(path) == FILES[name] else different).append(name)
    return Checked(tuple(good), tuple(missing), tuple(different))


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    total = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            total.update(block)
    return total.hexdigest()


def described(checked: Checked, folder: str | Path) -> str:
    """What to tell a user: how many files are there, and where to get each of the others."""
    if checked.complete:
        return f"{folder}: all {len(checked.good)} files are upstream's"
    there = "" if Path(folder).is_dir() else " (there is no such folder)"
    lines = [f"{folder}: {len(checked.good)} files are upstream's{there}"]
    wrong = [("missing", name) for name in checked.missing] + [("different", name) for name in checked.different]
    for part, source in (("tau2/", TAU2), ("usergym/", USERGYM)):
        own = [(what, name) for what, name in wrong if name.startswith(part)]
        lines += [f"from {source}:"] if own else []
        lines += [f"  {what}: {name}    upstream: {origin(name)}" for what, name in own]
    return "\n".join(lines)


def origin(name: str) -> str:
    """Where upstream keeps one of FILES, in its repository."""
    part, _, rest = name.partition("/")
    if part == "tau2":
        return rest if rest == "LICENSE" else f"data/tau2/{'' if rest.startswith('user_simulator/') else 'domains/'}{rest}"
    gym, _, file = rest.partition("/")
    if not file:
        return gym
    if file.endswith(".json"):
        return f"gyms/{gym.capitalize()}Gym/{gym}gym/data/{file}"
    variant, _, split = file.rpartition("_")    # travel22_test.parquet
    if variant:
        return f"data/{variant}_multiturn_onechoice/{split}"
    if gym == "merged":
        return f"data/{file.removesuffix('.parquet')}_multiturn/{file.removeprefix('all')}"
    return f"data/{_FOLDERS.get(gym, gym)}_multiturn/{file}"


def advice(path: str | Path) -> str:
    """What to do about a file that is not there; "" where it is none of upstream's."""
    path = Path(path)
    name = next((name for name in FILES if path.absolute().as_posix().endswith(f"/{name}")), None)
    if name is None:
        return ""
    return (f"it is one of upstream's: `eau-jax data {shlex.quote(str(path.parents[name.count('/')]))}` lists which of them "
            "are missing there and where to get them")
