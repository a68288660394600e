"""Formats of the user, as the text of a file: of the values of images, and of any number of images."""

FORMATS = """
class Values:
    needs = "values"

    def __init__(self, directory):
        self.directory = directory

    def add(self, image, pictures):
        assert pictures == []
        (self.directory / "values.txt").write_text(str(len(image.result.layers)))

class Many:
    many = True

    def __init__(self, directory):
        self.file = open(directory / "names.txt", "w")

    def add(self, image, pictures):
        self.file.write(f"{image.key} {image.name} {len(pictures)}\\n")

    def close(self):
        self.file.close()
"""
