"""TensorBoard's own pages, in a browser."""

import pytest
from image_files import save_picture
from tensorboard_server import images_of_tags, serving
from waiting import PATIENCE, wait_until

pytest_plugins = ["browser"]  # its fixtures
NOTICE = "notice: TensorBoard ticks none of more than 40 runs: click TOGGLE ALL RUNS on its page Images"


@pytest.mark.thorough
@pytest.mark.parametrize("images", [41, 200])
def test_the_command_of_the_notice_shows_the_pictures_of_many_images(images, fmapviz, browser, tmp_path):
    for seed in range(images):
        save_picture(tmp_path / "many" / f"{seed}.png", seed)
    result = fmapviz("shapesnet", "many", "--predictions", "0", "--layers", "features.0.conv", "--out", "my runs")
    _, command = result.stdout.decode().splitlines()
    assert NOTICE in result.stderr.decode().splitlines()
    page = browser.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    with serving(command, tmp_path) as address:
        assert wait_until(lambda: len(images_of_tags(address)) == images)
        page.goto(f"{address}#images")
        page.locator("tf-multi-checkbox paper-checkbox").nth(images - 1).wait_for()
        assert page.locator("tf-image-loader").count() == 0
        page.get_by_text("Toggle All Runs").click()
        for number in range(24):  # a page of the input, and one of the layer
            page.locator("tf-image-loader").nth(number).locator("img").wait_for()
        page.close()
